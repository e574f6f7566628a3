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

/** What happened to responses since the frame before, in the order in which a client reads the lists. */
interface Lists {
  readonly joined: JoinedEntry[];
  readonly restarted: RestartedEntry[];
  readonly tokens: { request: number; offset: number; token_ids: number[] }[];
  readonly lengths: { request: number; length: number }[];
  readonly finished: FinishedEntry[];
}

const noLists = (): Lists => ({ joined: [], restarted: [], tokens: [], lengths: [], finished: [] });

/** One frame, as JSON writes it behind the subscription's key; absent fields are empty. */
export interface Frame extends Partial<Lists> {
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
  groups_finished?: readonly string[];
  weight_epoch?: WeightEpoch;
  progress?: ProgressFields;
}

function finishedEntry({ spec, response }: RolloutRequest) {
  return {
    request: spec.requestId as number,
    finish_reason: response.finish ?? ("abort" as const),
    length: response.length,
    weight_epoch: response.chunks.at(-1)?.epoch ?? 0,
  };
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
 * Sends the output that the cursors lack, in frames that are never empty, and moves the cursors on. `last`: what the frame
 * after which nothing is lacking has besides. `send` returns whether to go on. Returns false if it was stopped.
 */
export function bringOn(
  { message, cursors }: Subscription,
  about: {
    readonly attemptOf: (request: RolloutRequest) => number;
    readonly last: () => Frame;
    readonly send: (frame: Frame) => boolean;
  },
): boolean {
  let lists = noLists();
  let tokens = 0;
  let entries = 0;
  const isSent = (more: Frame = {}) => {
    const full = Object.entries(lists).filter(([, list]) => list.length > 0);
    const frame = { ...Object.fromEntries(full), ...more };
    lists = noLists();
    tokens = 0;
    entries = 0;
    return Object.keys(frame).length === 0 || about.send(frame);
  };
  for (const [request, cursor] of cursors) {
    const { response } = request;
    const { requestId } = request.spec;
    if (entries >= FRAME_ENTRIES && !isSent()) return false;
    entries += 1;
    const attempt = about.attemptOf(request);
    if (cursor.attempt !== attempt) {
      lists.restarted.push({ request: requestId, attempt });
      Object.assign(cursor, { attempt, offset: 0 });
    }
    if (!cursor.isDeclared) lists.joined.push(joinedEntry(request, cursor));
    cursor.isDeclared = true;
    while (cursor.offset < response.length) {
      if (message.filter.progress === true) {
        lists.lengths.push({ request: requestId, length: response.length });
        cursor.offset = response.length;
        break;
      }
      if (tokens >= FRAME_TOKENS && !isSent()) return false;
      const { offset } = cursor;
      const count = Math.min(response.length - offset, FRAME_TOKENS - tokens);
      const token_ids = Array.from(response.tokens(offset).subarray(0, count));
      lists.tokens.push({ request: requestId, offset, token_ids });
      cursor.offset += count;
      tokens += count;
    }
    if (request.status !== "finished") continue;
    lists.finished.push(finishedEntry(request));
    cursors.delete(request);
  }
  return isSent(about.last());
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
