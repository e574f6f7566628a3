// Who listens to what. A topic is one filter: clients that are up to date with it share every frame; one
// that is behind reads what it lacks out of the responses themselves, at its own pace, until it is not.

import type { WeightEpoch } from "../../core/base/ids.ts";
import type { Group, Request } from "../../core/request/buffer.ts";
import type { Detokenizer, Text } from "../../text/text.ts";
import type { Socket } from "../http.ts";
import type { Filter, Frame, StreamFormat } from "./frame.ts";

/** What has happened to a response in a turn; bits. */
export const JOINED = 1;
export const RESTARTED = 2;
export const TOKENS = 4;
export const FINISHED = 8;

/** One response, and the updates that clients need. */
export interface Track {
  readonly request: Request;
  readonly group: GroupTracks;
  /** Changes when the response restarts; its tokens so far are void then. */
  attempt: number;
  /** Of the current turn, and where its tokens begin. */
  flags: number;
  from: number;
  /** Since the last progress frame. */
  progressFlags: number;
  /** null: no client follows this response alone. */
  topic: Topic | null;
}

export interface GroupTracks {
  readonly group: Group;
  readonly tracks: Track[];
  /** The rollout has forgotten it: no response joins any more. */
  isRetired: boolean;
  topic: Topic | null;
}

export interface Client {
  readonly socket: Socket;
  readonly format: StreamFormat;
  /** By topic key. */
  readonly subscriptions: Map<string, Subscription>;
  isClosing: boolean;
}

export interface Topic {
  readonly key: string;
  readonly filter: Filter;
  /** What it is about; null: everything. */
  readonly track: Track | null;
  readonly group: GroupTracks | null;
  readonly live: Set<Subscription>;
  readonly behind: Set<Subscription>;
  /** Of the current turn. */
  readonly dirty: Track[];
  readonly groupsFinished: string[];
  isTouched: boolean;
}

/** How far a client that is behind is with one response. */
export interface Cursor {
  offset: number;
  attempt: number;
  /** The client knows of the response. */
  isDeclared: boolean;
  /** null: no text is wanted. */
  detokenizer: Detokenizer | null;
}

export interface Subscription {
  readonly client: Client;
  readonly topic: Topic;
  /** Of the responses it lacks something of; empty once it is live. */
  readonly cursors: Map<Track, Cursor>;
  /** null: none is wanted. Text depends on where a client began, so it is never sent in a shared frame. */
  readonly text: Text | null;
  /** Weight updates and finished groups that it did not get while it was behind. */
  epoch: WeightEpoch;
  readonly groupsFinished: string[];
}

/** Maximum tokens in a frame for a client that is behind: 16,384 tokens are 64 KiB. */
const PIECE_TOKENS = 16_384;
const PIECE_ENTRIES = 1_024;

export function newTopic(
  filter: Filter,
  options: { key: string; track: Track | null; group: GroupTracks | null },
): Topic {
  return {
    ...options,
    filter,
    live: new Set(),
    behind: new Set(),
    dirty: [],
    groupsFinished: [],
    isTouched: false,
  };
}

/** Nothing more can come. */
export function isOver(topic: Topic): boolean {
  if (topic.track !== null) return topic.track.request.status === "finished";
  return topic.group?.isRetired ?? false;
}

export function isGroupFinished({ group }: GroupTracks): boolean {
  return group.finished === group.requests.length;
}

/** Puts what happened to a response in this turn into a frame of tokens. */
export function tell(track: Track, frame: Frame): void {
  const { request, flags, from } = track;
  if ((flags & JOINED) !== 0) declare(track, 0, frame);
  if ((flags & RESTARTED) !== 0) {
    frame.restarted.push({ request: request.spec.requestId, attempt: track.attempt });
  }
  if ((flags & TOKENS) !== 0 && request.response.length > from) {
    frame.tokensFrom(request, from);
  }
  if ((flags & FINISHED) !== 0) finish(track, frame);
}

/** The same since the last progress frame, without tokens. */
export function tellLength(track: Track, frame: Frame): void {
  const { request, progressFlags } = track;
  const { length } = request.response;
  if ((progressFlags & JOINED) !== 0) declare(track, length, frame);
  if ((progressFlags & RESTARTED) !== 0) {
    frame.restarted.push({ request: request.spec.requestId, attempt: track.attempt });
  }
  if ((progressFlags & (TOKENS | RESTARTED)) !== 0) frame.length(request.spec.requestId, length);
  if ((progressFlags & FINISHED) !== 0) finish(track, frame);
}

/**
 * Fills a frame with what the subscription lacks, and yields whenever the frame is full; it continues after the
 * frame has been sent and begun again. When it ends, the subscription is up to date.
 */
export function* pieces(subscription: Subscription, frame: Frame): Generator<void> {
  const { cursors, topic } = subscription;
  for (const [track, cursor] of cursors) {
    if (frame.entries >= PIECE_ENTRIES || frame.tokenIds.length >= PIECE_TOKENS) yield;
    if (cursor.attempt !== track.attempt)
      beginAnew(cursor, track, { text: subscription.text, frame });
    if (!cursor.isDeclared) {
      declare(track, cursor.offset, frame);
      cursor.isDeclared = true;
    }
    if (topic.filter.kind === "progress") bringLength(track, cursor, frame);
    else while (!bringTokens(track, cursor, frame)) yield;
    if (track.request.status !== "finished") continue;
    finish(track, frame);
    cursors.delete(track);
  }
}

function beginAnew(cursor: Cursor, track: Track, options: { text: Text | null; frame: Frame }) {
  options.frame.restarted.push({
    request: track.request.spec.requestId,
    attempt: track.attempt,
  });
  cursor.attempt = track.attempt;
  cursor.offset = 0;
  cursor.detokenizer = options.text?.detokenizer({ skipSpecial: true }) ?? null;
}

function bringLength(track: Track, cursor: Cursor, frame: Frame): void {
  const { spec, response } = track.request;
  if (cursor.offset === response.length) return;
  frame.length(spec.requestId, response.length);
  cursor.offset = response.length;
}

/** false: the frame is full. */
function bringTokens(track: Track, cursor: Cursor, frame: Frame): boolean {
  const { spec, response, status } = track.request;
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

function declare(track: Track, offset: number, frame: Frame): void {
  const { spec } = track.request;
  frame.joined.push({
    request: spec.requestId,
    group: spec.groupId,
    index: spec.sampleIndex,
    prompt_tokens: spec.prompt.length,
    offset,
    attempt: track.attempt,
  });
}

function finish(track: Track, frame: Frame): void {
  const { spec, response } = track.request;
  frame.finished.push({
    request: spec.requestId,
    finish_reason: response.finish ?? "abort",
    length: response.length,
    weight_epoch: response.chunks.at(-1)?.epoch ?? 0,
  });
}
