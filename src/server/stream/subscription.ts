// A client's subscription to one filter, and its frames: what the clients of the filter are sent, as JSON. A subscription has
// a cursor into each response that has something new for it: a client that is behind reads the missing output from the
// responses themselves, at its own pace.

import type { WeightEpoch } from "../../core/base/ids.ts";
import type { Group, RolloutRequest } from "../../core/request/buffer.ts";
import type { Progress } from "../../core/rollout/meter.ts";
import type { Socket } from "../http.ts";
import type { Filter, Subscribe } from "./client-message.ts";

export type JoinedEntry = ReturnType<typeof joinedEntry>;
export type RestartedEntry = Pick<JoinedEntry, "request" | "attempt">;
export type FinishedEntry = ReturnType<typeof finishedEntry>;

/** Lists of a frame. Its fields are sent in the order of these three. */
const LISTS = ["joined", "restarted", "tokens", "lengths", "finished", "groups_finished"] as const;
const HEAD = ["state", "refused", "begun"] as const;
const TAIL = ["weight_epoch", "progress"] as const;
type List = (typeof LISTS)[number];

/** One frame, with the entries of its lists as JSON: an object for each of them would slow busy streams. */
export interface Frame extends Partial<Record<List, string>> {
  /** State of the subscription; ended: no frame follows. */
  state?: "subscribed" | "ended";
  refused?: { readonly code: string; readonly message: string };
  /** The beginning of a subscription, by which a client sees what it missed since another one. */
  begun?: {
    /** Differs between servers, each of which numbers its responses from 0. */
    readonly server: number;
    /** Number of the next response. */
    readonly requests: number;
    /** Number of responses that the `joined` lists will name first. */
    readonly joined: number;
  };
  weight_epoch?: WeightEpoch;
  progress?: ProgressFields;
}

export function addEntry(frame: Frame, list: List, entry: unknown): void {
  const before = frame[list] === undefined ? "" : `${frame[list]},`;
  frame[list] = before + JSON.stringify(entry);
}

/** The tokens `ids[0..count)` of a response, from `offset` on. */
function addTokens(
  frame: Frame,
  { request, offset }: { readonly request: number; readonly offset: number },
  ids: Int32Array,
  count: number,
): void {
  const before = frame.tokens === undefined ? "" : `${frame.tokens},`;
  let json = `${before}{"request":${request},"offset":${offset},"token_ids":[${ids[0]}`;
  for (let i = 1; i < count; i += 1) json += `,${ids[i]}`;
  frame.tokens = `${json}]}`;
}

function finishedEntry({ spec, response }: RolloutRequest) {
  return {
    request: spec.requestId as number,
    finish_reason: response.finish ?? ("abort" as const),
    length: response.length,
    weight_epoch: response.chunks.at(-1)?.epoch ?? 0,
  };
}

/** The frame as JSON; empty: it says nothing. */
export function frameJson(subscription: string, frame: Frame): string {
  let json = "";
  for (const field of HEAD) json += member(field, frame[field]);
  for (const list of LISTS) {
    if (frame[list] !== undefined) json += `,"${list}":[${frame[list]}]`;
  }
  for (const field of TAIL) json += member(field, frame[field]);
  return json === "" ? "" : `{"subscription":${JSON.stringify(subscription)}${json}}`;
}

function member(field: string, value: unknown): string {
  return value === undefined ? "" : `,"${field}":${JSON.stringify(value)}`;
}

export type ProgressFields = ReturnType<typeof progressFields>;

/** The rollout's progress by the names of the wire: those of `Progress` in snake case. */
export function progressFields(progress: Progress, epoch: WeightEpoch) {
  const workers = progress.workers.map(inSnakeCase);
  return { ...inSnakeCase(progress), weight_epoch: epoch, workers };
}

type SnakeCase<Name extends string> = Name extends `${infer First}${infer Rest}`
  ? `${First extends Lowercase<First> ? First : `_${Lowercase<First>}`}${SnakeCase<Rest>}`
  : Name;
type InSnakeCase<T> = { readonly [Name in keyof T & string as SnakeCase<Name>]: T[Name] };

function inSnakeCase<T extends object>(fields: T): InSnakeCase<T> {
  const renamed = Object.entries(fields).map(([name, value]) => [
    name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`),
    value,
  ]);
  return Object.fromEntries(renamed) as InSnakeCase<T>;
}

export type Subject = RolloutRequest | Group;

export interface StreamCursor {
  offset: number;
  attempt: number;
  /** Whether a frame has named the response to the client. */
  isDeclared: boolean;
}

export interface Subscription {
  readonly socket: Socket;
  readonly message: Subscribe;
  /** See keyOf; a client has one subscription with it. */
  readonly key: string;
  /** Responses or groups that it has sent something of, and that may have more. */
  readonly open: Set<Subject>;
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
  let frame: Frame = {};
  let tokens = 0;
  let entries = 0;
  const isSent = () => {
    const json = frameJson(key, frame);
    frame = {};
    tokens = 0;
    entries = 0;
    return json === "" || about.send(json);
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

/** `offset`: of the first token sent. `attempt` changes when the response or the server restarts. */
function joinedEntry({ spec }: RolloutRequest, { offset, attempt }: StreamCursor) {
  return {
    request: spec.requestId as number,
    group: spec.groupId,
    index: spec.sampleIndex,
    prompt_tokens: spec.prompt.length,
    offset,
    attempt,
  };
}
