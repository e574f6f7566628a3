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

/** Lists of a frame. All fields are sent in this order: state, refused, begun, these, weight_epoch, progress. */
const LISTS = ["joined", "restarted", "tokens", "lengths", "finished", "groups_finished"] as const;
type List = (typeof LISTS)[number];

/** One frame, with the entries of its lists as JSON: an object for each of them would slow busy streams. */
export interface Frame extends Record<List, string> {
  readonly subscription: string;
  /** State of the subscription; ended: no frame follows. */
  state: "subscribed" | "ended" | null;
  refused: { readonly code: string; readonly message: string } | null;
  /** The beginning of a subscription, by which a client sees what it missed since another one. */
  begun: {
    /** Differs between servers, each of which numbers its responses from 0. */
    readonly server: number;
    /** Number of the next response. */
    readonly requests: number;
    /** Number of responses that the `joined` lists will name first. */
    readonly joined: number;
  } | null;
  weight_epoch: WeightEpoch | null;
  progress: ReturnType<typeof progressFields> | null;
}

export function newFrame(subscription: string): Frame {
  return {
    subscription,
    state: null,
    refused: null,
    begun: null,
    joined: "",
    restarted: "",
    tokens: "",
    lengths: "",
    finished: "",
    groups_finished: "",
    weight_epoch: null,
    progress: null,
  };
}

export function addEntry(frame: Frame, list: List, entry: unknown): void {
  frame[list] += `${frame[list] === "" ? "" : ","}${JSON.stringify(entry)}`;
}

/** The tokens `ids[0..count)` of a response, from `offset` on. */
function addTokens(
  frame: Frame,
  { request, offset }: { readonly request: number; readonly offset: number },
  ids: Int32Array,
  count: number,
): void {
  const comma = frame.tokens === "" ? "" : ",";
  let json = `${comma}{"request":${request},"offset":${offset},"token_ids":[${ids[0]}`;
  for (let i = 1; i < count; i += 1) json += `,${ids[i]}`;
  frame.tokens += `${json}]}`;
}

function finishedEntry({ spec, response }: RolloutRequest) {
  return {
    request: spec.requestId as number,
    finish_reason: response.finish ?? ("abort" as const),
    length: response.length,
    weight_epoch: response.chunks.at(-1)?.epoch ?? 0,
  };
}

/** The frame as JSON without its empty fields; null: all are empty. */
export function frameJson(frame: Frame): string | null {
  const { subscription, state, refused, begun, weight_epoch, progress } = frame;
  let json = "";
  if (state !== null) json += `,"state":"${state}"`;
  if (refused !== null) json += `,"refused":${JSON.stringify(refused)}`;
  if (begun !== null) json += `,"begun":${JSON.stringify(begun)}`;
  for (const list of LISTS) if (frame[list] !== "") json += `,"${list}":[${frame[list]}]`;
  if (weight_epoch !== null) json += `,"weight_epoch":${weight_epoch}`;
  if (progress !== null) json += `,"progress":${JSON.stringify(progress)}`;
  return json === "" ? null : `{"subscription":${JSON.stringify(subscription)}${json}}`;
}

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

export interface Client {
  readonly socket: Socket;
  readonly subscriptions: Map<string, Subscription>;
  isClosing: boolean;
}

/** A source of events: one response, a group, or everything; progress: as lengths and counters, without tokens. */
export type Subject = RolloutRequest | Group | "all" | "progress";

export interface StreamCursor {
  offset: number;
  attempt: number;
  /** Whether a frame has named the response to the client. */
  isDeclared: boolean;
}

export interface Subscription {
  readonly client: Client;
  readonly message: Subscribe;
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
