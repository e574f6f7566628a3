// Packs an engine's events for the message from its thread to the rollout's: the tokens of all requests become one array of
// heads, one of tokens and one of logprobs, which are transferred. A message's cost then hardly depends on the number of
// events.

import { requestId } from "../../core/base/ids.ts";
import type { WorkerEvent } from "../../core/rollout/worker.ts";

type TokensEvent = Extract<WorkerEvent, { kind: "tokens" }>;

export interface PackedEvents {
  /** Five words for each token event: request, offset, tokens, other events before it, alternatives for each token. */
  readonly heads: Int32Array;
  readonly tokens: Int32Array;
  readonly logprobs: Float32Array;
  readonly topTokens: Int32Array;
  readonly topLogprobs: Float32Array;
  readonly others: readonly Exclude<WorkerEvent, TokensEvent>[];
}

const HEAD_WORDS = 5;

export function pack(events: readonly WorkerEvent[]): PackedEvents {
  const packed = events.filter((event): event is TokensEvent => event.kind === "tokens");
  let tokenCount = 0;
  let topCount = 0;
  for (const { tokens, top } of packed) {
    tokenCount += tokens.length;
    topCount += top?.tokens.length ?? 0;
  }
  const heads = new Int32Array(packed.length * HEAD_WORDS);
  const tokens = new Int32Array(tokenCount);
  const logprobs = new Float32Array(tokenCount);
  const topTokens = new Int32Array(topCount);
  const topLogprobs = new Float32Array(topCount);
  const others: Exclude<WorkerEvent, TokensEvent>[] = [];
  let head = 0;
  let at = 0;
  let topAt = 0;
  for (const event of events) {
    if (event.kind !== "tokens") {
      others.push(event);
      continue;
    }
    const { offset, top } = event;
    const { length } = event.tokens;
    heads.set([event.requestId, offset, length, others.length, top?.count ?? 0], head);
    head += HEAD_WORDS;
    tokens.set(event.tokens, at);
    logprobs.set(event.logprobs, at);
    at += length;
    if (top === null) continue;
    topTokens.set(top.tokens, topAt);
    topLogprobs.set(top.logprobs, topAt);
    topAt += top.tokens.length;
  }
  return { heads, tokens, logprobs, topTokens, topLogprobs, others };
}

/** Unpacks events, in their order; token events are views of the packed arrays. */
export function unpack(packed: PackedEvents): WorkerEvent[] {
  const { heads, others, tokens, logprobs, topTokens, topLogprobs } = packed;
  const events: WorkerEvent[] = [];
  let otherIndex = 0;
  let at = 0;
  let topAt = 0;
  for (let head = 0; head < heads.length; head += HEAD_WORDS) {
    const [id = 0, offset = 0, length = 0, before = 0, count = 0] = heads.subarray(head);
    events.push(...others.slice(otherIndex, before));
    otherIndex = before;
    const end = at + length;
    const topEnd = topAt + count * length;
    const top = {
      count,
      tokens: topTokens.subarray(topAt, topEnd),
      logprobs: topLogprobs.subarray(topAt, topEnd),
    };
    events.push({
      kind: "tokens",
      requestId: requestId(id),
      offset,
      tokens: tokens.subarray(at, end),
      logprobs: logprobs.subarray(at, end),
      top: count === 0 ? null : top,
    });
    at = end;
    topAt = topEnd;
  }
  events.push(...others.slice(otherIndex));
  return events;
}

/** The buffers to transfer with the message instead of copying them. */
export function transfersOf(packed: PackedEvents): ArrayBuffer[] {
  const { heads, tokens, logprobs, topTokens, topLogprobs } = packed;
  const arrays = [heads, tokens, logprobs, topTokens, topLogprobs];
  const buffers = arrays.map(({ buffer }) => buffer as ArrayBuffer);
  for (const event of packed.others) {
    if (event.kind === "exported" && event.kv !== null) buffers.push(event.kv.bytes);
  }
  return buffers;
}
