// Events of a worker in the form that crosses threads and networks: the tokens of all requests as one array each of heads,
// tokens and logprobs. What a message costs then hardly depends on how many events it holds.

import type { TopLogprobs } from "../core/request/columns.ts";
import { TOP_LOGPROBS } from "../core/request/sampling-bounds.ts";

/** Columns of a token event, whatever names its request. */
export interface TokenColumns {
  readonly offset: number;
  readonly tokens: Int32Array;
  readonly logprobs: Float32Array;
  readonly top: TopLogprobs | null;
}

export interface PackedEvents<Other> {
  /** Five words for each token event: id, offset, tokens, other events that come before it, alternatives of each token. */
  readonly heads: Int32Array;
  readonly tokens: Int32Array;
  readonly logprobs: Float32Array;
  readonly topTokens: Int32Array;
  readonly topLogprobs: Float32Array;
  readonly others: readonly Other[];
}

const HEAD_WORDS = 5;
const INT_MAX = 0x7fffffff;

/** The sender has said what cannot be. */
export class InvalidEvents extends Error {}

type TokensEvent = TokenColumns & { readonly kind: "tokens" };

export function packEvents<T extends TokensEvent, Other extends { readonly kind: string }>(
  events: readonly (T | Other)[],
  idOf: (event: T) => number,
): PackedEvents<Other> {
  const packed = events.filter((event): event is T => event.kind === "tokens");
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
  const others: Other[] = [];
  let [head, at, topAt] = [0, 0, 0];
  for (const event of events) {
    if (!isTokens(event)) {
      others.push(event);
      continue;
    }
    const { offset, top } = event;
    heads.set([idOf(event), offset, event.tokens.length, others.length, top?.count ?? 0], head);
    head += HEAD_WORDS;
    tokens.set(event.tokens, at);
    logprobs.set(event.logprobs, at);
    at += event.tokens.length;
    if (top === null) continue;
    topTokens.set(top.tokens, topAt);
    topLogprobs.set(top.logprobs, topAt);
    topAt += top.tokens.length;
  }
  return { heads, tokens, logprobs, topTokens, topLogprobs, others };
}

function isTokens<T extends TokensEvent>(event: T | { readonly kind: string }): event is T {
  return event.kind === "tokens";
}

/** The events in their order; token events are views of the packed arrays. @throws InvalidEvents. */
export function unpackEvents<T extends TokensEvent, Other>(
  packed: PackedEvents<Other>,
  eventOf: (id: number, columns: TokenColumns) => T,
): (T | Other)[] {
  const { heads, others, tokens, logprobs, topTokens, topLogprobs } = packed;
  if (heads.length % HEAD_WORDS !== 0) throw new InvalidEvents("heads ends within a head");
  if (logprobs.length !== tokens.length || topLogprobs.length !== topTokens.length) {
    throw new InvalidEvents("there are not as many logprobs as tokens");
  }
  const events: (T | Other)[] = [];
  let [other, at, topAt] = [0, 0, 0];
  for (let head = 0; head < heads.length; head += HEAD_WORDS) {
    const id = heads[head] ?? 0;
    const offset = heads[head + 1] ?? 0;
    const length = heads[head + 2] ?? 0;
    const before = heads[head + 3] ?? 0;
    const count = heads[head + 4] ?? 0;
    if (before < other || before > others.length) {
      throw new InvalidEvents(`a head comes after ${before} of ${others.length} other events`);
    }
    for (; other < before; other += 1) events.push(others[other] as Other);
    const [end, topEnd] = [at + length, topAt + count * length];
    const isFit = offset >= 0 && length >= 0 && offset + length <= INT_MAX && end <= tokens.length;
    if (id < 0 || !isFit) {
      throw new InvalidEvents(`a head holds id ${id}, offset ${offset}, ${length} tokens`);
    }
    if (count < 0 || count > TOP_LOGPROBS.max || topEnd > topTokens.length) {
      throw new InvalidEvents(`a head holds ${count} alternatives`);
    }
    const top =
      count === 0
        ? null
        : {
            count,
            tokens: topTokens.subarray(topAt, topEnd),
            logprobs: topLogprobs.subarray(topAt, topEnd),
          };
    const columns = { tokens: tokens.subarray(at, end), logprobs: logprobs.subarray(at, end) };
    events.push(eventOf(id, { offset, ...columns, top }));
    [at, topAt] = [end, topEnd];
  }
  for (; other < others.length; other += 1) events.push(others[other] as Other);
  if (at === tokens.length && topAt === topTokens.length) return events;
  throw new InvalidEvents("tokens are left over");
}
