// What passes between an engine's thread and the thread of the rollout. Token events, nearly all of the
// traffic, travel as two transferred buffers: a message then costs a few microseconds however many they are.

import { assert } from "../../core/base/assert.ts";
import type { ErrorCode } from "../../core/base/errors.ts";
import { requestId, type WeightEpoch, type WeightsId } from "../../core/base/ids.ts";
import type { WorkerCapacity, WorkerCommand, WorkerEvent } from "../../core/rollout/worker.ts";
import type { ModelInfo } from "./weights.ts";

/** Weights that this process has loaded: any of its threads may use the pointer. */
export interface SharedWeights {
  readonly id: WeightsId;
  readonly pointer: number;
  readonly info: ModelInfo;
}

export interface EngineSettings {
  readonly slots: number;
  readonly kvTokens: number;
  readonly contextTokens: number;
  readonly epoch: WeightEpoch;
  /** Time the step-cost profile may take; 0: no profile. */
  readonly profileMs: number;
  /** Drafts are verified whether it pays or not. */
  readonly draftsAlways: boolean;
  /** Size limit of responses of earlier weight epochs, which the engine drafts from; 0: none are kept. */
  readonly historyBytes: number;
}

export type ToEngine =
  | { kind: "open"; weights: SharedWeights; settings: EngineSettings }
  | { kind: "commands"; commands: readonly WorkerCommand[] }
  | { kind: "reload"; weights: SharedWeights; epoch: WeightEpoch }
  /** Each is answered by `done`. */
  | { kind: "sleep" }
  | { kind: "wake" }
  | { kind: "canary" }
  | { kind: "close" };

export type FromEngine =
  | { kind: "opened"; capacity: WorkerCapacity }
  | { kind: "events"; epoch: WeightEpoch; events: PackedEvents }
  /** The weights of the epoch before are no longer in use here. */
  | { kind: "reloaded" }
  /** The new weights cannot serve; those of the epoch before still do. */
  | { kind: "reload_refused"; code: ErrorCode; message: string }
  /** `problem` null: it worked. */
  | { kind: "done"; problem: { code: ErrorCode; message: string } | null }
  /** The engine has ended and is freed. */
  | { kind: "failed"; code: ErrorCode; message: string }
  | { kind: "closed" };

/**
 * Five words head a token event: request id, offset, tokens, the other events that come before it, and the
 * alternatives of each token.
 */
const HEAD_WORDS = 5;

export interface PackedEvents {
  /** Heads of the token events, then their tokens in the same order, then the alternatives of these. */
  readonly words: Int32Array<ArrayBuffer>;
  readonly tokenEvents: number;
  /** Logprobs of the tokens, then of the alternatives. */
  readonly logprobs: Float32Array<ArrayBuffer>;
  readonly others: readonly WorkerEvent[];
}

export function packEvents(events: readonly WorkerEvent[]): PackedEvents {
  let tokenEvents = 0;
  let tokenCount = 0;
  let topCount = 0;
  for (const event of events) {
    if (event.kind !== "tokens") continue;
    tokenEvents += 1;
    tokenCount += event.tokens.length;
    topCount += event.top?.tokens.length ?? 0;
  }
  const tokensAt = tokenEvents * HEAD_WORDS;
  const words = new Int32Array(tokensAt + tokenCount + topCount);
  const logprobs = new Float32Array(tokenCount + topCount);
  const others: WorkerEvent[] = [];
  let head = 0;
  let at = 0;
  let topAt = tokenCount;
  for (const event of events) {
    if (event.kind !== "tokens") {
      others.push(event);
      continue;
    }
    words[head] = event.requestId;
    words[head + 1] = event.offset;
    words[head + 2] = event.tokens.length;
    words[head + 3] = others.length;
    words[head + 4] = event.top?.count ?? 0;
    words.set(event.tokens, tokensAt + at);
    logprobs.set(event.logprobs, at);
    if (event.top !== null) {
      words.set(event.top.tokens, tokensAt + topAt);
      logprobs.set(event.top.logprobs, topAt);
      topAt += event.top.tokens.length;
    }
    head += HEAD_WORDS;
    at += event.tokens.length;
  }
  return { words, tokenEvents, logprobs, others };
}

/** The events in their order; token events are views of the packed buffers. */
export function unpackEvents(packed: PackedEvents): WorkerEvent[] {
  const { words, tokenEvents, logprobs, others } = packed;
  const events: WorkerEvent[] = [];
  const tokensAt = tokenEvents * HEAD_WORDS;
  let at = 0;
  let topAt = 0;
  for (let head = 0; head < tokensAt; head += HEAD_WORDS) topAt += words[head + 2] as number;
  let other = 0;
  for (let head = 0; head < tokensAt; head += HEAD_WORDS) {
    assert(head + HEAD_WORDS <= words.length, "a head is whole");
    const count = words[head + 2] as number;
    const before = words[head + 3] as number;
    const alternatives = words[head + 4] as number;
    while (other < before) {
      events.push(others[other] as WorkerEvent);
      other += 1;
    }
    events.push({
      kind: "tokens",
      requestId: requestId(words[head] as number),
      offset: words[head + 1] as number,
      tokens: words.subarray(tokensAt + at, tokensAt + at + count),
      logprobs: logprobs.subarray(at, at + count),
      top:
        alternatives === 0
          ? null
          : {
              count: alternatives,
              tokens: words.subarray(tokensAt + topAt, tokensAt + topAt + count * alternatives),
              logprobs: logprobs.subarray(topAt, topAt + count * alternatives),
            },
    });
    at += count;
    topAt += count * alternatives;
  }
  for (; other < others.length; other += 1) events.push(others[other] as WorkerEvent);
  return events;
}

/** Buffers that move with a message in place of being copied. */
export function transfersOf(packed: PackedEvents): ArrayBuffer[] {
  const buffers = [packed.words.buffer, packed.logprobs.buffer];
  for (const event of packed.others) {
    if (event.kind === "exported" && event.kv !== null) buffers.push(event.kv.bytes);
  }
  return buffers;
}
