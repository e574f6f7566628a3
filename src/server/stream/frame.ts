// Frames of a token stream: what the clients of one filter are sent, as JSON.

import type { WeightEpoch } from "../../core/base/ids.ts";
import type { RolloutRequest } from "../../core/request/buffer.ts";
import type { ResponseEnd } from "../../core/request/request.ts";
import type { Progress } from "../../core/rollout/report.ts";

export interface JoinedEntry {
  readonly request: number;
  readonly group: string;
  readonly index: number;
  readonly prompt_tokens: number;
  /** Offset of the first token sent. */
  readonly offset: number;
  /** Number of the attempt, which changes when the response or the server restarts. */
  readonly attempt: number;
}

export interface RestartedEntry {
  readonly request: number;
  readonly attempt: number;
}

export interface FinishedEntry {
  readonly request: number;
  readonly finish_reason: ResponseEnd;
  readonly length: number;
  readonly weight_epoch: number;
}

export interface Begun {
  /** Differs between servers, each of which numbers its responses from 0. */
  readonly server: number;
  /** Number of the next response. */
  readonly requests: number;
  /** Number of responses that the `joined` lists will name first. */
  readonly joined: number;
}

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
  begun: Begun | null;
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
export function addTokens(
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

export function finishedEntry({ spec, response }: RolloutRequest): FinishedEntry {
  return {
    request: spec.requestId,
    finish_reason: response.finish ?? "abort",
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
