// Messages of a token stream, independent of the format: clients' commands, and a frame as it is filled.
// A frame holds one turn of the rollout for one filter; its tokens are stored in columns, so that filling and
// encoding it allocate nothing per response.

import { unreachable } from "../../core/base/assert.ts";
import type { WeightEpoch } from "../../core/base/ids.ts";
import type { Request } from "../../core/request/buffer.ts";
import type { FinishReason } from "../../core/request/request.ts";

export const STREAM_FORMATS = ["json", "protobuf"] as const;
export type StreamFormat = (typeof STREAM_FORMATS)[number];

/** What a client may subscribe to. progress: lengths and counters some times a second, no tokens. */
export type Filter =
  | { readonly kind: "request"; readonly request: number }
  | { readonly kind: "group"; readonly group: string }
  | { readonly kind: "all" }
  | { readonly kind: "progress" };

export type ClientMessage =
  | {
      readonly kind: "subscribe";
      readonly filter: Filter;
      /** Of a request: output tokens that the client has. */
      readonly offset: number;
      /** The attempt that those belong to; null: whichever is current. */
      readonly attempt: number | null;
      readonly text: boolean;
    }
  | { readonly kind: "unsubscribe"; readonly filter: Filter };

/** Group names are the clients' own; no prompt line may have a longer one. */
export const GROUP_NAME_MAX = 1024;

/** How frames name their filter. */
export function keyOf(filter: Filter): string {
  switch (filter.kind) {
    case "request":
      return `request:${filter.request}`;
    case "group":
      return `group:${filter.group}`;
    case "all":
    case "progress":
      return filter.kind;
    default:
      return unreachable(filter);
  }
}

/** ended: nothing more can come. */
export type SubscriptionState = "subscribed" | "unsubscribed" | "ended";

export interface Refusal {
  readonly code: string;
  readonly message: string;
}

export interface JoinedEntry {
  readonly request: number;
  readonly group: string;
  readonly index: number;
  readonly prompt_tokens: number;
  /** Where the tokens begin that are sent. */
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
  /** Of its last chunk. */
  readonly weight_epoch: number;
}

export interface WorkerProgressEntry {
  readonly worker: number;
  readonly running: number;
  readonly slots: number;
  readonly kv_tokens_used: number;
  readonly kv_tokens: number;
}

export interface ProgressEntry {
  /** Number of the iteration since the server began; all counts are the iteration's. */
  readonly iteration: number;
  readonly is_tail: boolean;
  readonly elapsed_s: number;
  readonly groups_done: number;
  readonly groups: number;
  readonly requests_done: number;
  readonly requests: number;
  readonly output_tokens: number;
  readonly tokens_per_s: number;
  readonly running: number;
  readonly waiting: number;
  readonly migrations: number;
  readonly preemptions: number;
  readonly mean_acceptance_length: number;
  readonly eta_s: number | null;
  readonly eta_low_s: number | null;
  readonly eta_high_s: number | null;
  readonly weight_epoch: number;
  readonly workers: readonly WorkerProgressEntry[];
}

/** A column of unsigned 32-bit numbers that keeps its memory when it is emptied. */
export class Column {
  #values = new Uint32Array(64);
  #length = 0;

  get length(): number {
    return this.#length;
  }

  push(value: number): void {
    this.#reserve(this.#length + 1);
    this.#values[this.#length] = value;
    this.#length += 1;
  }

  /** Makes room for `count` more values, which are then written to `memory` from the returned place on. */
  extend(count: number): number {
    const at = this.#length;
    this.#reserve(at + count);
    this.#length = at + count;
    return at;
  }

  /** Valid until the next change. */
  get memory(): Uint32Array {
    return this.#values;
  }

  append(values: Int32Array): void {
    this.#reserve(this.#length + values.length);
    this.#values.set(values, this.#length);
    this.#length += values.length;
  }

  /** A view, valid until the next change. */
  view(from = 0, to = this.#length): Uint32Array {
    return this.#values.subarray(from, to);
  }

  clear(): void {
    this.#length = 0;
  }

  #reserve(length: number): void {
    if (length <= this.#values.length) return;
    const values = new Uint32Array(Math.max(length, this.#values.length * 2));
    values.set(this.#values);
    this.#values = values;
  }
}

/** One frame, to be filled, encoded and filled again. In the order in which clients read it. */
export class Frame {
  subscription = "";
  state: SubscriptionState | null = null;
  refused: Refusal | null = null;
  readonly joined: JoinedEntry[] = [];
  readonly restarted: RestartedEntry[] = [];
  readonly requests = new Column();
  readonly offsets = new Column();
  readonly counts = new Column();
  readonly tokenIds = new Column();
  /** As many as `requests`, or none. */
  readonly texts: string[] = [];
  readonly lengthRequests = new Column();
  readonly lengths = new Column();
  readonly finished: FinishedEntry[] = [];
  readonly groupsFinished: string[] = [];
  weightEpoch: WeightEpoch | null = null;
  progress: ProgressEntry | null = null;

  begin(subscription: string): void {
    this.subscription = subscription;
    this.state = null;
    this.refused = null;
    this.joined.length = 0;
    this.restarted.length = 0;
    this.requests.clear();
    this.offsets.clear();
    this.counts.clear();
    this.tokenIds.clear();
    this.texts.length = 0;
    this.lengthRequests.clear();
    this.lengths.clear();
    this.finished.length = 0;
    this.groupsFinished.length = 0;
    this.weightEpoch = null;
    this.progress = null;
  }

  tokens(request: number, offset: number, tokens: Int32Array): void {
    this.requests.push(request);
    this.offsets.push(offset);
    this.counts.push(tokens.length);
    this.tokenIds.append(tokens);
  }

  /** All output tokens of a response from `from` on. */
  tokensFrom(request: Request, from: number): void {
    const { response, spec } = request;
    const count = response.length - from;
    this.requests.push(spec.requestId);
    this.offsets.push(from);
    this.counts.push(count);
    const at = this.tokenIds.extend(count);
    response.copyTokens(from, this.tokenIds.memory, at);
  }

  length(request: number, length: number): void {
    this.lengthRequests.push(request);
    this.lengths.push(length);
  }

  /** Number of entries about responses. */
  get entries(): number {
    const { joined, restarted, requests, lengthRequests, finished } = this;
    const changes = joined.length + restarted.length + finished.length;
    return changes + requests.length + lengthRequests.length;
  }

  get isEmpty(): boolean {
    return (
      this.entries === 0 &&
      this.groupsFinished.length === 0 &&
      this.state === null &&
      this.refused === null &&
      this.weightEpoch === null &&
      this.progress === null
    );
  }
}
