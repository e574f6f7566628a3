// Topics and their subscribers. A topic is one filter: clients that are up to date share every frame; one that is
// behind reads the missing output from the responses themselves, at its own pace, until it has caught up.

import type { WeightEpoch } from "../../core/base/ids.ts";
import type { Group, Request } from "../../core/request/buffer.ts";
import type { Detokenizer, Text } from "../../text/text.ts";
import type { Socket } from "../http.ts";
import type { Frame, StreamFormat } from "./frame.ts";

/** Changes of a response in a turn, as bits. The offset of its new tokens stands above them. */
export const JOINED = 1;
export const RESTARTED = 2;
export const TOKENS = 4;
export const FINISHED = 8;
const FLAGS = 15;
const FLAG_BITS = 4;

export interface Client {
  readonly socket: Socket;
  readonly format: StreamFormat;
  readonly subscriptions: Map<string, Subscription>;
  isClosing: boolean;
}

/** Subject of a topic; progress: lengths and counters of everything, no tokens. */
export type Subject = Request | Group | "all" | "progress";

export interface Topic {
  /** The topic's name in frames. */
  readonly key: string;
  readonly subject: Subject;
  readonly live: Set<Subscription>;
  readonly behind: Set<Subscription>;
  /** Changes in the current turn; for progress: since the last frame. */
  readonly happened: Map<Request, number>;
  readonly groupsFinished: string[];
  /** The group is complete: no response joins any more. */
  isRetired: boolean;
}

/** How far a client that is behind is with one response. */
export interface Cursor {
  offset: number;
  attempt: number;
  /** The client knows of the response. */
  isDeclared: boolean;
  detokenizer: Detokenizer | null;
}

export interface Subscription {
  readonly client: Client;
  readonly topic: Topic;
  /** Responses with output that the client lacks; empty once the subscription is live. */
  readonly cursors: Map<Request, Cursor>;
  /** null: none is wanted. Text depends on where a client began, so it is never sent in a shared frame. */
  readonly text: Text | null;
  /** Weight updates and finished groups that it did not get while it was behind. */
  epoch: WeightEpoch;
  readonly groupsFinished: string[];
}

/** Maximum tokens in a frame for a client that is behind: 16,384 tokens are 64 KiB. */
const PIECE_TOKENS = 16_384;
const PIECE_ENTRIES = 1_024;

export function newTopic(subject: Subject): Topic {
  return {
    key: keyOf(subject),
    subject,
    live: new Set(),
    behind: new Set(),
    happened: new Map(),
    groupsFinished: [],
    isRetired: false,
  };
}

export function keyOf(subject: Subject): string {
  if (typeof subject === "string") return subject;
  return "spec" in subject ? `request:${subject.spec.requestId}` : `group:${subject.groupId}`;
}

/** Whether nothing more can come for the topic. */
export function isOver({ subject, isRetired }: Topic): boolean {
  if (typeof subject === "string" || !("spec" in subject)) return isRetired;
  return subject.status === "finished";
}

/**
 * Notes a change in the current turn for all subscribers. It runs for every batch of tokens, and allocates no object.
 */
export function note({ happened }: Topic, request: Request, flag: number, from: number): void {
  const known = happened.get(request);
  if (known === undefined) happened.set(request, (from << FLAG_BITS) | flag);
  // Tokens of this turn before the restart are void.
  else if (flag === RESTARTED) happened.set(request, (known & FLAGS) | flag);
  else if ((known & flag) === 0) happened.set(request, known | flag);
}

/** Clients that are behind also get a new response, from its first token on. */
export function declareTo({ behind }: Topic, request: Request, attempt: number): void {
  for (const { cursors } of behind) {
    cursors.set(request, { offset: 0, attempt, isDeclared: false, detokenizer: null });
  }
}

/** Fills a frame with what the subscribers share of the turn. */
export function tell({ subject, happened, groupsFinished }: Topic, frame: Frame): void {
  for (const [request, flags] of happened) {
    const { length } = request.response;
    const from = flags >>> FLAG_BITS;
    if ((flags & JOINED) !== 0) frame.declare(request, subject === "progress" ? length : 0);
    if ((flags & RESTARTED) !== 0) frame.restart(request);
    if (subject === "progress") {
      if ((flags & (TOKENS | RESTARTED)) !== 0) frame.length(request);
      // One that an earlier process began has tokens as it joins.
    } else if ((flags & (TOKENS | JOINED)) !== 0 && length > from) frame.tokensFrom(request, from);
    if ((flags & FINISHED) !== 0) frame.finish(request);
  }
  frame.groupsFinished.push(...groupsFinished);
}

export function clear(topic: Topic): void {
  topic.happened.clear();
  topic.groupsFinished.length = 0;
}

/**
 * Fills a frame with what the subscription lacks, and yields whenever the frame is full; it continues after the
 * frame has been sent and begun again. When it ends, the subscription is up to date.
 */
export function* pieces(subscription: Subscription, frame: Frame): Generator<void> {
  const { cursors, topic, text } = subscription;
  for (const [request, cursor] of cursors) {
    if (frame.entries >= PIECE_ENTRIES || frame.tokenIds.length >= PIECE_TOKENS) yield;
    const attempt = frame.attemptOf(request);
    if (cursor.attempt !== attempt) {
      frame.restart(request);
      cursor.attempt = attempt;
      cursor.offset = 0;
      cursor.detokenizer = text?.detokenizer({ skipSpecial: true }) ?? null;
    }
    if (!cursor.isDeclared) frame.declare(request, cursor.offset);
    cursor.isDeclared = true;
    if (topic.subject === "progress") {
      if (cursor.offset !== request.response.length) frame.length(request);
      cursor.offset = request.response.length;
    } else while (!bringTokens(request, cursor, frame)) yield;
    if (request.status !== "finished") continue;
    frame.finish(request);
    cursors.delete(request);
  }
}

/** false: the frame is full. */
function bringTokens({ spec, response, status }: Request, cursor: Cursor, frame: Frame): boolean {
  const { detokenizer } = cursor;
  const room = PIECE_TOKENS - frame.tokenIds.length;
  const tokens = response.tokens(cursor.offset).subarray(0, room);
  const isEnd = cursor.offset + tokens.length === response.length;
  let text = tokens.length > 0 ? (detokenizer?.push(tokens) ?? "") : "";
  if (isEnd && status === "finished") text += detokenizer?.flush() ?? "";
  if (tokens.length > 0 || text !== "") {
    frame.tokens(spec.requestId, cursor.offset, tokens);
    if (detokenizer !== null) frame.texts.push(text);
  }
  cursor.offset += tokens.length;
  return isEnd;
}
