// Messages of the host to bytes and back, by proto/link.proto: a worker's events and control answers. The
// tokens of all requests of a step travel as one packed array each of heads, tokens and logprobs: what a
// frame costs then hardly depends on how many events it holds. Never throws on what a peer sent.

import type { TopLogprobs } from "../../core/request/columns.ts";
import type { FinishReason } from "../../core/request/request.ts";
import { type ChunkDrafts, VERIFICATION_WORDS } from "../../core/request/response.ts";
import { TOP_LOGPROBS } from "../../core/request/sampling-bounds.ts";
import type { WorkerStats } from "../../core/rollout/worker.ts";
import {
  type Decoded,
  decodeAs,
  encodeAs,
  type Fields,
  InvalidMessage,
} from "../../proto/checked.ts";
import { kvFields, kvOf, kvPartOf } from "./command-codec.ts";
import {
  bodyOf,
  count,
  counts,
  epochOf,
  floatsOf,
  groupIdOf,
  jsonOf,
  listOf,
  optionalOf,
  real,
  requestIdOf,
  textOf,
  toBytes,
  typeOf,
  weightsOf,
  wordsOf,
} from "./fields.ts";
import { welcomeFields, welcomeOf } from "./hello-codec.ts";
import { INT_MAX, NAME_CHARS_MAX } from "./limits.ts";
import type { HostMessage, WireEvent } from "./message.ts";

type TokensEvent = Extract<WireEvent, { kind: "tokens" }>;
type ChunkDone = Extract<WireEvent, { kind: "chunk_done" }>;

const messageType = typeOf("HostMessage");

/** Run, offset, tokens, other events that come before it, alternatives reported with each token. */
const HEAD_WORDS = 5;
const OTHERS_MAX = 1_048_576;
/** Up to this many tokens, copying is faster than creating a view, which also keeps the whole frame alive. */
const FEW = 16;

/** In the order of the schema's enum, from 1; null: the chunk is used up. */
const FINISHES: readonly (FinishReason | null)[] = [null, "stop", "length", "abort"];

const COUNTERS = [
  "running",
  "waiting",
  "kvTokensUsed",
  "steps",
  "outputTokens",
  "prefillTokens",
  "recomputedTokens",
  "preemptions",
  "draftedTokens",
  "acceptedTokens",
  "drafts",
  "kvLoads",
  "kvLoadFailures",
] as const;

export function encodeHostMessage(message: HostMessage): Uint8Array {
  switch (message.kind) {
    case "welcome":
      return encodeAs(messageType, { welcome: welcomeFields(message) });
    case "heartbeat":
      return encodeAs(messageType, { heartbeat: {} });
    case "kv_part":
      return encodeAs(messageType, { kvPart: message.part });
    case "events":
      return encodeAs(messageType, { events: { epoch: message.epoch, ...pack(message.events) } });
    case "control_answer": {
      const { controlId, answer } = message;
      const body = JSON.stringify(answer.body ?? null);
      const weights = message.weights ?? "";
      return encodeAs(messageType, {
        controlAnswer: { controlId, status: answer.status, body, weights },
      });
    }
  }
}

export function decodeHostMessage(bytes: Uint8Array): Decoded<HostMessage> {
  return decodeAs(messageType, bytes, (fields): HostMessage => {
    const { name, body } = bodyOf(fields);
    switch (name) {
      case "welcome":
        return welcomeOf(body);
      case "heartbeat":
        return { kind: name };
      case "kvPart":
        return { kind: "kv_part", part: kvPartOf(body) };
      case "events":
        return { kind: name, epoch: epochOf(body), events: unpack(body) };
      default: {
        const controlId = count(body, "controlId", { max: 0xffffffff });
        const status = count(body, "status", { min: 100, max: 599 });
        const answer = { status, body: jsonOf(body, "body") };
        return { kind: "control_answer", controlId, answer, weights: weightsOf(body) };
      }
    }
  });
}

function pack(events: readonly WireEvent[]): object {
  const packed = events.filter((event) => event.kind === "tokens");
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
  const others: object[] = [];
  let head = 0;
  let at = 0;
  let topAt = 0;
  for (const event of events) {
    if (event.kind !== "tokens") {
      others.push(otherFields(event));
      continue;
    }
    heads[head] = event.run;
    heads[head + 1] = event.offset;
    heads[head + 2] = event.tokens.length;
    heads[head + 3] = others.length;
    heads[head + 4] = event.top?.count ?? 0;
    head += HEAD_WORDS;
    tokens.set(event.tokens, at);
    logprobs.set(event.logprobs, at);
    at += event.tokens.length;
    if (event.top === null) continue;
    topTokens.set(event.top.tokens, topAt);
    topLogprobs.set(event.top.logprobs, topAt);
    topAt += event.top.tokens.length;
  }
  return {
    heads: toBytes(heads),
    tokens: toBytes(tokens),
    logprobs: toBytes(logprobs),
    topTokens: toBytes(topTokens),
    topLogprobs: toBytes(topLogprobs),
    others,
  };
}

/** The arrays of one frame, and how far they are read. */
interface Unpacking {
  readonly tokens: Int32Array;
  readonly logprobs: Float32Array;
  readonly topTokens: Int32Array;
  readonly topLogprobs: Float32Array;
  at: number;
  topAt: number;
}

/** Events of many tokens are views of one copy of the frame's arrays. */
function unpack(body: Fields): WireEvent[] {
  const heads = wordsOf(body, "heads");
  const others = listOf(body, "others", OTHERS_MAX);
  const from: Unpacking = {
    tokens: wordsOf(body, "tokens"),
    logprobs: floatsOf(body, "logprobs"),
    topTokens: wordsOf(body, "topTokens"),
    topLogprobs: floatsOf(body, "topLogprobs"),
    at: 0,
    topAt: 0,
  };
  if (heads.length % HEAD_WORDS !== 0) throw new InvalidMessage("heads ends within a head");
  if (
    from.logprobs.length !== from.tokens.length ||
    from.topLogprobs.length !== from.topTokens.length
  ) {
    throw new InvalidMessage("there are not as many logprobs as tokens");
  }
  const events: WireEvent[] = [];
  let other = 0;
  for (let head = 0; head < heads.length; head += HEAD_WORDS) {
    const before = heads[head + 3] ?? 0;
    if (before < other || before > others.length) {
      throw new InvalidMessage(`a head comes after ${before} of ${others.length} other events`);
    }
    for (; other < before; other += 1) events.push(otherOf(others[other] ?? {}));
    events.push(tokensEvent(heads, head, from));
  }
  for (; other < others.length; other += 1) events.push(otherOf(others[other] ?? {}));
  if (from.at !== from.tokens.length || from.topAt !== from.topTokens.length) {
    throw new InvalidMessage("tokens are left over");
  }
  return events;
}

function tokensEvent(heads: Int32Array, head: number, from: Unpacking): TokensEvent {
  const run = heads[head] ?? 0;
  const offset = heads[head + 1] ?? 0;
  const length = heads[head + 2] ?? 0;
  const topCount = heads[head + 4] ?? 0;
  const { at, topAt } = from;
  const end = at + length;
  const isFit =
    run >= 1 &&
    offset >= 0 &&
    length >= 0 &&
    offset + length <= INT_MAX &&
    end <= from.tokens.length;
  if (!isFit)
    throw new InvalidMessage(`a head holds run ${run}, offset ${offset}, ${length} tokens`);
  const isFew = length <= FEW;
  const tokens = isFew ? fewTokens(from.tokens, at, end) : from.tokens.subarray(at, end);
  const logprobs = isFew ? fewFloats(from.logprobs, at, end) : from.logprobs.subarray(at, end);
  from.at = end;
  if (topCount === 0) return { kind: "tokens", run, offset, tokens, logprobs, top: null };
  const topEnd = topAt + topCount * length;
  if (topCount < 0 || topCount > TOP_LOGPROBS.max || topEnd > from.topTokens.length) {
    throw new InvalidMessage(`a head holds ${topCount} alternatives`);
  }
  from.topAt = topEnd;
  const top: TopLogprobs = {
    count: topCount,
    tokens: from.topTokens.subarray(topAt, topEnd),
    logprobs: from.topLogprobs.subarray(topAt, topEnd),
  };
  return { kind: "tokens", run, offset, tokens, logprobs, top };
}

function fewTokens(words: Int32Array, start: number, end: number): Int32Array {
  const few = new Int32Array(end - start);
  for (let i = start; i < end; i += 1) few[i - start] = words[i] ?? 0;
  return few;
}

function fewFloats(words: Float32Array, start: number, end: number): Float32Array {
  const few = new Float32Array(end - start);
  for (let i = start; i < end; i += 1) few[i - start] = words[i] ?? 0;
  return few;
}

function otherFields(event: Exclude<WireEvent, TokensEvent>): object {
  switch (event.kind) {
    case "chunk_done":
      return { chunkDone: chunkDoneFields(event) };
    case "exported":
      return { exported: { requestId: event.requestId, kv: kvFields(event.kv) } };
    case "evicted":
      return { evicted: event };
    case "preempted":
      return { preempted: event };
    case "stats":
      return { stats: event.stats };
    case "advanced":
      return { advanced: event };
    case "gap":
      return { gap: event };
    case "failed":
      return { failed: { message: event.message.slice(0, NAME_CHARS_MAX) } };
  }
}

function otherOf(fields: Fields): Exclude<WireEvent, TokensEvent> {
  const { name, body } = bodyOf(fields);
  switch (name) {
    case "chunkDone":
      return chunkDoneOf(body);
    case "exported":
      return { kind: name, requestId: requestIdOf(body), kv: kvOf(body) };
    case "evicted":
      return { kind: name, requestId: requestIdOf(body) };
    case "preempted":
      return { kind: name, requestId: requestIdOf(body), tokens: count(body, "tokens") };
    case "stats":
      return { kind: name, stats: statsOf(body) };
    case "advanced":
      return { kind: name, epoch: epochOf(body) };
    case "gap": {
      const sampleIndex = count(body, "sampleIndex");
      return { kind: name, groupId: groupIdOf(body), sampleIndex, offset: count(body, "offset") };
    }
    case "failed":
      return { kind: name, message: textOf(body, "message", NAME_CHARS_MAX) };
    default:
      throw new InvalidMessage("there is no body");
  }
}

function chunkDoneFields({ run, finish, refusal, drafts }: ChunkDone): object {
  const fields = { run, finish: FINISHES.indexOf(finish) + 1, ...(drafts && { drafts }) };
  if (refusal === undefined) return fields;
  const { status, message } = refusal;
  return { ...fields, refusal: { status, message: message.slice(0, NAME_CHARS_MAX) } };
}

function chunkDoneOf(body: Fields): ChunkDone {
  const finish = FINISHES[count(body, "finish") - 1];
  if (finish === undefined) throw new InvalidMessage(`finish is ${body.finish}`);
  const run = count(body, "run", { min: 1 });
  const drafts = draftsOf(optionalOf(body, "drafts"));
  const done = { kind: "chunk_done", run, finish, ...(drafts && { drafts }) } as const;
  const refusal = optionalOf(body, "refusal");
  if (refusal === null) return done;
  if (finish !== "abort") throw new InvalidMessage("a refusal ends its request");
  const status = count(refusal, "status", { min: 400, max: 599 });
  return { ...done, refusal: { status, message: textOf(refusal, "message", NAME_CHARS_MAX) } };
}

function draftsOf(body: Fields | null): ChunkDrafts | null {
  if (body === null) return null;
  const draftedTokens = count(body, "draftedTokens");
  const acceptedTokens = count(body, "acceptedTokens", { max: draftedTokens });
  const verifications = verificationsOf(body);
  // An empty list and none are the same here: with draft tokens, it was not reported.
  if (verifications.length === 0 && draftedTokens > 0) return { draftedTokens, acceptedTokens };
  return { draftedTokens, acceptedTokens, verifications };
}

function verificationsOf(body: Fields): Int32Array {
  const list = counts(body, "verifications", { listMax: VERIFICATION_WORDS * OTHERS_MAX });
  let isRight = list.length % VERIFICATION_WORDS === 0;
  for (let i = 0; i + 2 < list.length; i += VERIFICATION_WORDS) {
    isRight &&= (list[i + 2] as number) <= (list[i + 1] as number);
  }
  if (isRight) return Int32Array.from(list);
  throw new InvalidMessage("verifications are no threes of offset, draft tokens and accepted ones");
}

function statsOf(body: Fields): WorkerStats {
  const stats: Record<string, number> = {
    busyMs: real(body, "busyMs", { min: 0 }),
    draftMs: real(body, "draftMs", { min: 0 }),
  };
  for (const name of COUNTERS) stats[name] = count(body, name, { max: Number.MAX_SAFE_INTEGER });
  if (typeof body.draftSavedMs === "number") stats.draftSavedMs = real(body, "draftSavedMs");
  if (typeof body.stepError === "number") stats.stepError = real(body, "stepError", { min: 0 });
  return stats as Record<Exclude<keyof WorkerStats, "kvMoves">, number>;
}
