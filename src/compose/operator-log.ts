// The events that an operator wants to know of a server. The command writes them as lines of its log; metrics and the page
// read some of them as well.

import type { IterationSummary } from "../core/rollout/iteration-span.ts";
import type { EngineNotice } from "../engines/kind.ts";
import type { Member } from "../fleet/engines.ts";
import type { WeightsNotice } from "../fleet/updates.ts";
import type { AccessEntry, OpenStream } from "../server/http.ts";
import type { ServingState } from "../server/live/waiting.ts";
import type { RenderedBy } from "../server/openai/rendering.ts";

/** How serving ended. interrupted: before anything was served. time_up: requests in flight did not end in time. */
export type Ending = "interrupted" | "drained" | "second_signal" | "time_up" | { error: unknown };

export interface OperatorLog {
  listening(url: URL): void;
  /** Every engine has been tried once, or none is known yet: for scripts that wait. May be called again. */
  ready(url: URL): void;
  stopping(during: "waiting for the model" | "opening workers"): void;
  draining(unfinished: number, seconds: number): void;
  stopped(ending: Ending, unfinished: number, streams: readonly OpenStream[]): void;
  workerChanged(member: Member): void;
  engineNotice(engine: string, notice: EngineNotice): void;
  /** A server that drafts by itself was tested before it serves. */
  draftsTested(engine: string, state: string, reason: string): void;
  /** No server has reported its model yet. */
  modelUnknown(problem: string): void;
  weightsChanged(epoch: number, version: string): void;
  weightsNotice(notice: WeightsNotice): void;
  /** A weight update has held generation for this time. */
  weightsHeld(seconds: number): void;
  /** A chat has been rendered as a prompt, in this time. */
  chatRendered(by: RenderedBy, seconds: number): void;
  /** The model's chat template uses something that this engine of templates does not have. */
  chatProblem(problem: string): void;
  /** An engine's plugin or its output shows that its sampler verifies drafts wrongly: it gets no drafts. */
  notLossless(engine: string, reason: string): void;
  /** A request that made workers die was ended. `reason` names it and them. */
  quarantined(reason: string): void;
  answered(entry: AccessEntry): void;
  /** A request was ended with an error that an engine reported, or that is an engine's fault. */
  refused(entry: RefusedEntry): void;
  iterationEnded(summary: IterationSummary): void;
  /** The serving state has changed. Also called every minute while requests wait for it. */
  stateChanged(state: ServingState & { waiting: number; seconds: number }): void;
  /** Rollouts of an earlier process have gone on. */
  resumed(rollouts: number): void;
  /** A journal is not written any more; its rollout goes on without it. */
  journalFailed(error: unknown): void;
  /** A wait of the rollout has reached its bound; `reason` names both, and what was given up. */
  waitEnded(reason: string): void;
  /** All responses are generated, but these clients have not read theirs: the server stops when they have, or stall. */
  unread(streams: readonly OpenStream[]): void;
  failed(error: unknown): void;
  /** A bug stopped the rollout: nothing can be served any more. */
  broken(error: unknown): void;
}

export interface RefusedEntry {
  /** Number of the request. */
  readonly request: number;
  readonly worker: string | null;
  /** HTTP status of the engine's answer; 0: not known. */
  readonly status: number;
  readonly reason: string;
}

/** Passes each event to several readers, in the order in which they were added. An error of one does not affect the others. */
export class OperatorFeed {
  /** The log that passes events on to all readers. */
  readonly log: OperatorLog;
  readonly #readers: Partial<OperatorLog>[];

  /** `operator`: the first reader, which also gets the errors that others throw. */
  constructor(operator: OperatorLog) {
    this.#readers = [operator];
    const relays = new Map<PropertyKey, (...given: unknown[]) => void>();
    const relayOf = (_: object, event: PropertyKey) =>
      relays.getOrInsertComputed(event, () => this.#relay(event, operator));
    this.log = new Proxy({}, { get: relayOf }) as OperatorLog;
  }

  add(reader: Partial<OperatorLog>): void {
    this.#readers.push(reader);
  }

  #relay(event: PropertyKey, operator: OperatorLog) {
    return (...given: unknown[]): void => {
      for (const reader of this.#readers) {
        try {
          Reflect.get(reader, event)?.apply(reader, given);
        } catch (error) {
          operator.failed(error);
        }
      }
    };
  }
}
