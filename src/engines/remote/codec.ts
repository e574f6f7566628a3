// Messages of the worker link to bytes and back. The tokens of all requests of a step travel as one array each of heads,
// tokens and logprobs: what a frame costs then hardly depends on how many events it holds. Never throws on what a peer
// sent.

import type { TopLogprobs } from "../../core/request/columns.ts";
import { TOP_LOGPROBS } from "../../core/request/sampling-bounds.ts";
import type { Decoded } from "../../proto/checked.ts";
import { decodeFrame, encodeFrame } from "./frame.ts";
import { INT_MAX, NAME_CHARS_MAX } from "./limits.ts";
import {
  HOST_MESSAGE,
  type HostMessage,
  type OtherEvent,
  type PackedEvents,
  SIDECAR_MESSAGE,
  type SidecarMessage,
  type TokensEvent,
  type WireEvent,
} from "./message.ts";

/** Run, offset, tokens, other events that come before it, alternatives reported with each token. */
const HEAD_WORDS = 5;
/** Up to this many tokens, copying is faster than creating a view, which also keeps the whole frame alive. */
const FEW = 16;

/** The peer has said what cannot be. */
class InvalidEvents extends Error {}

export function encodeSidecarMessage(message: SidecarMessage): Uint8Array {
  switch (message.kind) {
    case "commands": {
      const commands = message.commands.map((command) => {
        if (command.kind !== "run" || command.request.sampling.engineFields === null)
          return command;
        const { sampling } = command.request;
        const engineFields = JSON.stringify(sampling.engineFields);
        return {
          ...command,
          request: { ...command.request, sampling: { ...sampling, engineFields } },
        };
      });
      return encodeFrame({ ...message, commands });
    }
    case "operation":
      return encodeFrame({ ...message, operation: textOf(message.operation) });
    default:
      return encodeFrame(message);
  }
}

export function decodeSidecarMessage(bytes: Uint8Array): Decoded<SidecarMessage> {
  return decodeFrame(bytes, SIDECAR_MESSAGE);
}

export function encodeHostMessage(message: HostMessage): Uint8Array {
  switch (message.kind) {
    case "events":
      return encodeFrame({ kind: "events", epoch: message.epoch, ...pack(message.events) });
    case "answer": {
      const { answer } = message;
      return encodeFrame({ ...message, answer: { ...answer, body: textOf(answer.body) } });
    }
    default:
      return encodeFrame(message);
  }
}

export function decodeHostMessage(bytes: Uint8Array): Decoded<HostMessage> {
  const decoded = decodeFrame(bytes, HOST_MESSAGE);
  if (decoded.kind !== "ok") return decoded;
  const { message } = decoded;
  if (message.kind !== "events") return { kind: "ok", message };
  const { kind, epoch } = message;
  try {
    return { kind: "ok", message: { kind, epoch, events: unpack(message) } };
  } catch (error) {
    if (!(error instanceof InvalidEvents)) throw error;
    return { kind: "invalid_message", problem: error.message };
  }
}

function textOf(body: unknown): string {
  return JSON.stringify(body ?? null);
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
  const others: OtherEvent[] = [];
  let head = 0;
  let at = 0;
  let topAt = 0;
  for (const event of events) {
    if (event.kind !== "tokens") {
      others.push(shortened(event));
      continue;
    }
    const { run, offset, top } = event;
    heads.set([run, offset, event.tokens.length, others.length, top?.count ?? 0], head);
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

/** An engine's message may be longer than a peer takes. */
function shortened(event: OtherEvent): OtherEvent {
  const short = (message: string) => message.slice(0, NAME_CHARS_MAX);
  if (event.kind === "failed") return { ...event, message: short(event.message) };
  if (event.kind !== "chunk_done" || event.refusal === undefined) return event;
  const { status, message } = event.refusal;
  return { ...event, refusal: { status, message: short(message) } };
}

/** How far the arrays of one frame are read. */
interface Unpacking extends PackedEvents {
  at: number;
  topAt: number;
}

/** Events of many tokens are views of one copy of the frame's arrays. */
function unpack(packed: PackedEvents): WireEvent[] {
  const { heads, others, tokens, logprobs, topTokens, topLogprobs } = packed;
  const from: Unpacking = { ...packed, at: 0, topAt: 0 };
  if (heads.length % HEAD_WORDS !== 0) throw new InvalidEvents("heads ends within a head");
  if (logprobs.length !== tokens.length || topLogprobs.length !== topTokens.length) {
    throw new InvalidEvents("there are not as many logprobs as tokens");
  }
  const events: WireEvent[] = [];
  let other = 0;
  for (let head = 0; head < heads.length; head += HEAD_WORDS) {
    const before = heads[head + 3] ?? 0;
    if (before < other || before > others.length) {
      throw new InvalidEvents(`a head comes after ${before} of ${others.length} other events`);
    }
    events.push(...others.slice(other, before));
    other = before;
    events.push(tokensEvent(heads, head, from));
  }
  events.push(...others.slice(other));
  if (from.at !== tokens.length || from.topAt !== topTokens.length) {
    throw new InvalidEvents("tokens are left over");
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
    throw new InvalidEvents(`a head holds run ${run}, offset ${offset}, ${length} tokens`);
  const isFew = length <= FEW;
  const tokens = isFew ? fewTokens(from.tokens, at, end) : from.tokens.subarray(at, end);
  const logprobs = isFew ? fewFloats(from.logprobs, at, end) : from.logprobs.subarray(at, end);
  from.at = end;
  if (topCount === 0) return { kind: "tokens", run, offset, tokens, logprobs, top: null };
  const topEnd = topAt + topCount * length;
  if (topCount < 0 || topCount > TOP_LOGPROBS.max || topEnd > from.topTokens.length) {
    throw new InvalidEvents(`a head holds ${topCount} alternatives`);
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
