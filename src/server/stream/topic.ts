// Topics and their subscribers. A topic is one filter. Clients that are up to date share the frames of each turn; one that is
// behind reads the missing output from the responses themselves, at its own pace, until it has caught up. Both are
// cursors into responses, from which `frames` goes on.

import type { WeightEpoch } from "../../core/base/ids.ts";
import type { Group, Request } from "../../core/request/buffer.ts";
import type { Socket } from "../http.ts";
import { type Frame, finishedEntry, frameJson, newFrame } from "./frame.ts";

export interface Client {
  readonly socket: Socket;
  readonly subscriptions: Map<string, Subscription>;
  isClosing: boolean;
}

/** Subject of a topic; progress: lengths and counters of everything, no tokens. */
export type Subject = Request | Group | "all" | "progress";

/** How far clients are with one response. */
export interface Cursor {
  offset: number;
  attempt: number;
  /** The response is known to them. */
  isDeclared: boolean;
}

export type Cursors = Map<Request, Cursor>;

export interface Topic {
  /** The topic's name in frames. */
  readonly key: string;
  readonly subject: Subject;
  readonly live: Set<Subscription>;
  readonly behind: Set<Subscription>;
  /** Responses that have changed in this turn, and how far those are with them that are up to date. */
  readonly changed: Cursors;
  readonly groupsFinished: string[];
  /** The group is complete: no response joins any more. */
  isRetired: boolean;
}

export interface Subscription {
  readonly client: Client;
  readonly topic: Topic;
  /** Responses with output that the client lacks; empty once the subscription is live. */
  readonly cursors: Cursors;
  /** Weight updates and finished groups that it did not get while it was behind. */
  epoch: WeightEpoch;
  readonly groupsFinished: string[];
}

/** Maximum tokens in a frame: 16,384 tokens are some 100 KiB. */
const FRAME_TOKENS = 16_384;
const FRAME_ENTRIES = 1_024;

export function newTopic(subject: Subject): Topic {
  return {
    ...{ key: keyOf(subject), subject, live: new Set(), behind: new Set() },
    ...{ changed: new Map(), groupsFinished: [], isRetired: false },
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
 * Frames with what the cursors lack, which are moved on; none is empty. `last`: completes the last one, after which
 * nothing is lacking.
 */
export function* frames(
  { key, subject }: Topic,
  cursors: Cursors,
  about: {
    readonly attemptOf: (request: Request) => number;
    readonly last: (frame: Frame) => void;
  },
): Generator<string> {
  let frame = newFrame(key);
  let [tokens, entries] = [0, 0];
  const full = function* () {
    yield* written(frame);
    frame = newFrame(key);
    [tokens, entries] = [0, 0];
  };
  for (const [request, cursor] of cursors) {
    const { spec, response } = request;
    const { requestId } = spec;
    if (entries >= FRAME_ENTRIES) yield* full();
    entries += 1;
    const attempt = about.attemptOf(request);
    if (cursor.attempt !== attempt) {
      frame.restarted.push({ request: requestId, attempt });
      Object.assign(cursor, { attempt, offset: 0 });
    }
    if (!cursor.isDeclared) frame.joined.push(joinedEntry(request, cursor));
    cursor.isDeclared = true;
    while (cursor.offset < response.length) {
      if (subject === "progress") {
        frame.lengths.push({ request: requestId, length: response.length });
        cursor.offset = response.length;
        break;
      }
      if (tokens >= FRAME_TOKENS) yield* full();
      const ids = response.tokens(cursor.offset).subarray(0, FRAME_TOKENS - tokens);
      frame.tokens.push({ request: requestId, offset: cursor.offset, token_ids: ids });
      cursor.offset += ids.length;
      tokens += ids.length;
    }
    if (request.status !== "finished") continue;
    frame.finished.push(finishedEntry(request));
    cursors.delete(request);
  }
  about.last(frame);
  yield* written(frame);
}

function* written(frame: Frame): Generator<string> {
  const json = frameJson(frame);
  if (json !== null) yield json;
}

function joinedEntry({ spec }: Request, { offset, attempt }: Cursor): Frame["joined"][number] {
  return {
    request: spec.requestId,
    group: spec.groupId,
    index: spec.sampleIndex,
    prompt_tokens: spec.prompt.length,
    offset,
    attempt,
  };
}
