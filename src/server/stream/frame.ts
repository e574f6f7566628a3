// Messages of a token stream, independent of the format: clients' commands, and a frame as it is filled.
// A frame holds one turn of the rollout for one filter; its tokens are stored in columns, so that filling and
// encoding it allocate nothing per response.

import type { WeightEpoch } from "../../core/base/ids.ts";
import type { Request } from "../../core/request/buffer.ts";
import type { FinishReason } from "../../core/request/request.ts";
import type { Progress } from "../../core/rollout/report.ts";

export const STREAM_FORMATS = ["json", "protobuf"] as const;
export type StreamFormat = (typeof STREAM_FORMATS)[number];

/** Subject of a client's subscription. progress: lengths and counters some times a second, no tokens. */
export type Filter =
  | { readonly kind: "request"; readonly request: number }
  | { readonly kind: "group"; readonly group: string }
  | { readonly kind: "all" }
  | { readonly kind: "progress" };

export interface Subscribe {
  readonly kind: "subscribe";
  readonly filter: Filter;
  /** For a request: the number of output tokens that the client has. */
  readonly offset: number;
  /** The attempt that those belong to; null: whichever is current. */
  readonly attempt: number | null;
  readonly text: boolean;
}

export type ClientMessage = Subscribe | { readonly kind: "unsubscribe"; readonly filter: Filter };

/** Group names are the clients' own; no prompt line may have a longer one. */
export const GROUP_NAME_MAX = 1024;

export interface JoinedEntry {
  readonly request: number;
  readonly group: string;
  readonly index: number;
  readonly prompt_tokens: number;
  /** Offset of the first token sent. */
  readonly offset: number;
  /** Changes when the response or the server restarts. */
  readonly attempt: number;
}

export interface RestartedEntry {
  readonly request: number;
  readonly attempt: number;
}

export interface FinishedEntry {
  readonly request: number;
  readonly finish_reason: FinishReason;
  readonly length: number;
  readonly weight_epoch: number;
}

type Fields = Readonly<Record<string, unknown>>;

/** The rollout's progress by the names of the wire: those of `Progress` in snake case. */
export function progressFields(progress: Progress, epoch: WeightEpoch): Fields {
  const workers = progress.workers.map(inSnakeCase);
  return { ...inSnakeCase(progress), weight_epoch: epoch, workers };
}

function inSnakeCase(fields: object): Fields {
  const renamed = Object.entries(fields).map(([name, value]) => [
    name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`),
    value,
  ]);
  return Object.fromEntries(renamed);
}

/** A column of unsigned 32-bit numbers that keeps its memory when it is emptied. */
export class Column {
  #values = new Uint32Array(64);
  #length = 0;

  get length(): number {
    return this.#length;
  }

  push(value: number): void {
    // Growing replaces the memory, so it comes first.
    const at = this.extend(1);
    this.#values[at] = value;
  }

  /** Makes room for `count` more values, which are then written to `memory` from the returned place on. */
  extend(count: number): number {
    const at = this.#length;
    this.#length += count;
    if (this.#length > this.#values.length) {
      const values = new Uint32Array(Math.max(this.#length, this.#values.length * 2));
      values.set(this.#values);
      this.#values = values;
    }
    return at;
  }

  /** Valid until the next change. */
  get memory(): Uint32Array {
    return this.#values;
  }

  append(values: Int32Array): void {
    const at = this.extend(values.length);
    this.#values.set(values, at);
  }

  /** A view, valid until the next change. */
  view(): Uint32Array {
    return this.#values.subarray(0, this.#length);
  }

  clear(): void {
    this.#length = 0;
  }
}

/** One frame, to be filled, encoded and filled again. In the order in which clients read it. */
export class Frame {
  subscription = "";
  /** ended: nothing more can come. */
  state: "subscribed" | "unsubscribed" | "ended" | null = null;
  refused: { readonly code: string; readonly message: string } | null = null;
  readonly joined: JoinedEntry[] = [];
  readonly restarted: RestartedEntry[] = [];
  readonly requests = new Column();
  readonly offsets = new Column();
  readonly counts = new Column();
  readonly tokenIds = new Column();
  /** Texts, one for each of `requests`, or none. */
  readonly texts: string[] = [];
  readonly lengthRequests = new Column();
  readonly lengths = new Column();
  readonly finished: FinishedEntry[] = [];
  readonly groupsFinished: string[] = [];
  weightEpoch: WeightEpoch | null = null;
  progress: Fields | null = null;
  readonly #firstAttempt: number;

  /** `firstAttempt` differs between servers, so that a client sees that it resumes at another one. */
  constructor(firstAttempt: number) {
    this.#firstAttempt = firstAttempt;
  }

  /** Changes when the response restarts; its tokens so far are void then. */
  attemptOf({ response }: Request): number {
    return (this.#firstAttempt + response.restarts) >>> 0;
  }

  begin(subscription: string): void {
    this.subscription = subscription;
    this.state = null;
    this.refused = null;
    this.weightEpoch = null;
    this.progress = null;
    const { joined, restarted, texts, finished, groupsFinished } = this;
    for (const list of [joined, restarted, texts, finished, groupsFinished]) list.length = 0;
    const { requests, offsets, counts, tokenIds, lengthRequests, lengths } = this;
    for (const column of [requests, offsets, counts, tokenIds, lengthRequests, lengths]) {
      column.clear();
    }
  }

  declare(request: Request, offset: number): void {
    const { spec } = request;
    this.joined.push({
      request: spec.requestId,
      group: spec.groupId,
      index: spec.sampleIndex,
      prompt_tokens: spec.prompt.length,
      offset,
      attempt: this.attemptOf(request),
    });
  }

  restart(request: Request): void {
    this.restarted.push({ request: request.spec.requestId, attempt: this.attemptOf(request) });
  }

  tokens(request: number, offset: number, tokens: Int32Array): void {
    this.requests.push(request);
    this.offsets.push(offset);
    this.counts.push(tokens.length);
    this.tokenIds.append(tokens);
  }

  /** All output tokens of a response from `from` on. */
  tokensFrom({ response, spec }: Request, from: number): void {
    const count = response.length - from;
    this.requests.push(spec.requestId);
    this.offsets.push(from);
    this.counts.push(count);
    const at = this.tokenIds.extend(count);
    response.copyTokens(from, this.tokenIds.memory, at);
  }

  length({ spec, response }: Request): void {
    this.lengthRequests.push(spec.requestId);
    this.lengths.push(response.length);
  }

  finish({ spec, response }: Request): void {
    this.finished.push({
      request: spec.requestId,
      finish_reason: response.finish ?? "abort",
      length: response.length,
      weight_epoch: response.chunks.at(-1)?.epoch ?? 0,
    });
  }

  get entries(): number {
    const { joined, restarted, requests, lengthRequests, finished } = this;
    const changes = joined.length + restarted.length + finished.length;
    return changes + requests.length + lengthRequests.length;
  }

  get isEmpty(): boolean {
    const { state, refused, weightEpoch, progress, groupsFinished } = this;
    const isQuiet = [state, refused, weightEpoch, progress].every((one) => one === null);
    return isQuiet && this.entries === 0 && groupsFinished.length === 0;
  }
}
