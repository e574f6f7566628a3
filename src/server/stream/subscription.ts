// A client's subscription to one filter. It has a cursor into each response that has something new for it, from which
// `frames` goes on: a client that is behind reads the missing output from the responses themselves, at its own pace.

import type { WeightEpoch } from "../../core/base/ids.ts";
import type { Group, RolloutRequest } from "../../core/request/buffer.ts";
import type { Socket } from "../http.ts";
import type { Filter, Subscribe } from "./client-message.ts";
import {
  addEntry,
  addTokens,
  type Frame,
  finishedEntry,
  frameJson,
  type JoinedEntry,
  newFrame,
} from "./frame.ts";

export interface Client {
  readonly socket: Socket;
  readonly subscriptions: Map<string, Subscription>;
  isClosing: boolean;
}

/** A source of events: one response, a group, or everything; progress: as lengths and counters, without tokens. */
export type Subject = RolloutRequest | Group | "all" | "progress";

/** Position of a client in one response. */
export interface StreamCursor {
  offset: number;
  attempt: number;
  /** Whether a frame has named the response to the client. */
  isDeclared: boolean;
}

export interface Subscription {
  readonly client: Client;
  readonly message: Subscribe;
  /** Name of the filter in frames. */
  readonly key: string;
  /** Existing subjects with events to come. A name may also be that of a later response or group, or of several groups. */
  readonly subjects: Set<Subject>;
  /** Responses with output that the client lacks. */
  readonly cursors: Map<RolloutRequest, StreamCursor>;
  /** Weight epoch that the client was sent; `groupsFinished` are finished groups that it was not sent yet. */
  epoch: WeightEpoch;
  readonly groupsFinished: string[];
  /** Whether the client has all output so far: then new output is sent at once. */
  isLive: boolean;
  /** Whether no event can follow: its response has finished, or its groups are complete. */
  isOver: boolean;
}

/** Maximum tokens in a frame: 16,384 tokens are some 100 KiB. */
const FRAME_TOKENS = 16_384;
const FRAME_ENTRIES = 1_024;

export function keyOf({ request, group, all }: Filter): string {
  if (request !== undefined) return `request:${request}`;
  if (group !== undefined) return `group:${group}`;
  return all === true ? "all" : "progress";
}

/**
 * Sends the output that the cursors lack, in frames that are never empty, and moves the cursors on. `last` completes the
 * frame after which nothing is lacking. `send` returns whether to go on. Returns false if it was stopped.
 */
export function bringOn(
  { key, message, cursors }: Subscription,
  about: {
    readonly attemptOf: (request: RolloutRequest) => number;
    readonly last: (frame: Frame) => void;
    readonly send: (json: string) => boolean;
  },
): boolean {
  let frame = newFrame(key);
  let tokens = 0;
  let entries = 0;
  const isSent = () => {
    const json = frameJson(frame);
    frame = newFrame(key);
    tokens = 0;
    entries = 0;
    return json === null || about.send(json);
  };
  for (const [request, cursor] of cursors) {
    const { response } = request;
    const { requestId } = request.spec;
    if (entries >= FRAME_ENTRIES && !isSent()) return false;
    entries += 1;
    const attempt = about.attemptOf(request);
    if (cursor.attempt !== attempt) {
      addEntry(frame, "restarted", { request: requestId, attempt });
      Object.assign(cursor, { attempt, offset: 0 });
    }
    if (!cursor.isDeclared) addEntry(frame, "joined", joinedEntry(request, cursor));
    cursor.isDeclared = true;
    while (cursor.offset < response.length) {
      if (message.filter.progress === true) {
        addEntry(frame, "lengths", { request: requestId, length: response.length });
        cursor.offset = response.length;
        break;
      }
      if (tokens >= FRAME_TOKENS && !isSent()) return false;
      const ids = response.tokens(cursor.offset);
      const count = Math.min(ids.length, FRAME_TOKENS - tokens);
      addTokens(frame, { request: requestId, offset: cursor.offset }, ids, count);
      cursor.offset += count;
      tokens += count;
    }
    if (request.status !== "finished") continue;
    addEntry(frame, "finished", finishedEntry(request));
    cursors.delete(request);
  }
  about.last(frame);
  return isSent();
}

function joinedEntry({ spec }: RolloutRequest, { offset, attempt }: StreamCursor): JoinedEntry {
  return {
    request: spec.requestId,
    group: spec.groupId,
    index: spec.sampleIndex,
    prompt_tokens: spec.prompt.length,
    offset,
    attempt,
  };
}
