// The events of a rollout, and the feed that passes them on. It is the one place where an error of a reader is caught: an
// error of whoever a request belongs to ends that request, and one of anybody else ends nothing.

import { contain } from "../base/contain.ts";
import type { WeightEpoch, WorkerId } from "../base/ids.ts";
import type { Group, RolloutRequest } from "../request/buffer.ts";
import type { EngineWorker, WorkerStats } from "./worker.ts";

/** Events come in order, inside the turn in which they occur. A reader may call the rollout back, and must be fast. */
export interface RolloutEvents<Asked = unknown> {
  /** A client's request has begun. `asked`: what the client wants. */
  joined(request: RolloutRequest, asked: Asked): void;
  /** Output tokens from `offset` on are new. */
  tokens(request: RolloutRequest, offset: number): void;
  /** The response is complete or given up ("abort"). Its `finish` is the reason; `joinedMs` and `finishedMs` are set. */
  finished(request: RolloutRequest): void;
  /** A closed group has only finished requests; it is forgotten afterwards. */
  groupFinished(group: Group): void;
  /** The request's tokens are discarded: it could not continue from them, and restarts. */
  restarted(request: RolloutRequest): void;
  /** The next epoch has begun: all workers have its weights. */
  advanced(epoch: WeightEpoch): void;
  /** A rollout that a client asked for as a whole is over, and its groups are complete. */
  rolloutOver(): void;
  stats(workerId: WorkerId, stats: WorkerStats): void;
  /** The worker was removed, or was before, or does not serve yet (`watch`). Its requests continue, or wait for a worker. */
  workerFailed(worker: EngineWorker, message: string): void;
  /** The request has been ended because it makes workers die; `response.refusal` is the reason. Before `finished`. */
  quarantined(request: RolloutRequest): void;
  /** A wait has reached its bound: what was given up, in words for an operator. Requests have ended for it before. */
  waitEnded(message: string): void;
  /** The worker gets no drafts, as it did not draw what it reported where it had them; or gets them again. */
  draftsOff(worker: EngineWorker, reason: string): void;
  /** A reader threw. `request`: the request that belongs to it, which ends after this; null: none. */
  threw(error: unknown, request: RolloutRequest | null): void;
  /** A bug: the rollout has stopped and must not be used. */
  broken(error: unknown): void;
}

export type RolloutReader<Asked = never> = Partial<RolloutEvents<Asked>>;

export class RolloutFeed {
  /** The rollout's owner, to whom all requests belong. */
  readonly #owner: RolloutReader<unknown>;
  readonly #threw: RolloutEvents["threw"];
  readonly #readers = new Set<RolloutReader<unknown>>();
  /** Readers of tokens, which are called for every batch. */
  #followers: RolloutEvents["tokens"][] = [];
  /** Readers of one request each, by its index, which later requests may reuse. */
  readonly #own: (
    | { readonly request: RolloutRequest; readonly reader: RolloutReader }
    | undefined
  )[] = [];

  /** `threw`: ends the request, if there is one, and tells of the error. */
  constructor(owner: RolloutReader<unknown>, threw: RolloutEvents["threw"]) {
    this.#owner = owner;
    this.#threw = threw;
  }

  /** Returns what ends the reading. */
  add(reader: RolloutReader<unknown>): () => void {
    this.#readers.add(reader);
    this.#readersChanged();
    return () => {
      this.#readers.delete(reader);
      this.#readersChanged();
    };
  }

  /** The request belongs to this reader, which gets its events alone. */
  own(request: RolloutRequest, reader: RolloutReader): void {
    this.#own[request.index] = { request, reader };
  }

  /** Called for every batch of tokens, so it makes no closure. */
  tokens(request: RolloutRequest, offset: number): void {
    const own = this.#own[request.index];
    try {
      this.#owner.tokens?.(request, offset);
      if (own?.request === request) own.reader.tokens?.(request, offset);
    } catch (error) {
      this.#threw(error, request);
    }
    const followers = this.#followers;
    for (let i = 0; i < followers.length; i += 1) {
      try {
        followers[i]?.(request, offset);
      } catch (error) {
        this.#threw(error, null);
      }
    }
  }

  finished(request: RolloutRequest): void {
    this.tell((reader) => reader.finished?.(request), request);
    if (this.#ownOf(request) !== null) this.#own[request.index] = undefined;
  }

  /** An event that is about a request tells its own reader as well. */
  tell(act: (reader: RolloutReader<unknown>) => void, request: RolloutRequest | null = null): void {
    const own = this.#ownOf(request);
    const both = () => {
      act(this.#owner);
      if (own !== null) act(own);
    };
    contain(both, (error) => this.#threw(error, request));
    for (const reader of this.#readers) {
      contain(
        () => act(reader),
        (error) => this.#threw(error, null),
      );
    }
  }

  /** Errors of readers at an error go to the owner; one of the owner goes nowhere. */
  threw(error: unknown, request: RolloutRequest | null): void {
    const own = this.#ownOf(request);
    const last = (problem: unknown, about: RolloutRequest | null) =>
      contain(
        () => this.#owner.threw?.(problem, about),
        () => {},
      );
    last(error, request);
    for (const reader of own === null ? this.#readers : [own, ...this.#readers]) {
      contain(
        () => reader.threw?.(error, request),
        (again) => last(again, null),
      );
    }
  }

  #ownOf(request: RolloutRequest | null): RolloutReader | null {
    const own = request === null ? undefined : this.#own[request.index];
    return own?.request === request ? (own?.reader ?? null) : null;
  }

  #readersChanged(): void {
    this.#followers = [...this.#readers].flatMap((reader) => reader.tokens?.bind(reader) ?? []);
  }
}
