// Frames of a token stream: what the clients of one filter are sent, as JSON.

import type { WeightEpoch } from "../../core/base/ids.ts";
import type { Request } from "../../core/request/buffer.ts";
import type { ResponseEnd } from "../../core/request/request.ts";
import type { Progress } from "../../core/rollout/report.ts";

export interface JoinedEntry {
  readonly request: number;
  readonly group: string;
  readonly index: number;
  readonly prompt_tokens: number;
  /** Offset of the first token sent. */
  readonly offset: number;
  /** Changes when the response or the server restarts. */
  readonly attempt: number;
}

export interface RestartedEntry {
  readonly request: number;
  readonly attempt: number;
}

/** `token_ids` is a view of the response, which is written before anything else happens to it. */
interface TokensEntry {
  readonly request: number;
  readonly offset: number;
  readonly token_ids: Int32Array;
}

export interface FinishedEntry {
  readonly request: number;
  readonly finish_reason: ResponseEnd;
  readonly length: number;
  readonly weight_epoch: number;
}

type Fields = Readonly<Record<string, unknown>>;

/** One frame; its fields are in the order in which clients read them. */
export interface Frame {
  readonly subscription: string;
  /** ended: nothing more can come. */
  state: "subscribed" | "ended" | null;
  refused: { readonly code: string; readonly message: string } | null;
  readonly joined: JoinedEntry[];
  readonly restarted: RestartedEntry[];
  readonly tokens: TokensEntry[];
  readonly lengths: { readonly request: number; readonly length: number }[];
  readonly finished: FinishedEntry[];
  readonly groups_finished: string[];
  weight_epoch: WeightEpoch | null;
  progress: Fields | null;
}

export function newFrame(subscription: string): Frame {
  return {
    ...{ subscription, state: null, refused: null },
    ...{ joined: [], restarted: [], tokens: [], lengths: [], finished: [], groups_finished: [] },
    ...{ weight_epoch: null, progress: null },
  };
}

export function finishedEntry({ spec, response }: Request): FinishedEntry {
  return {
    request: spec.requestId,
    finish_reason: response.finish ?? "abort",
    length: response.length,
    weight_epoch: response.chunks.at(-1)?.epoch ?? 0,
  };
}

/** The frame without what is empty in it; null: all of it is. */
export function frameJson({ subscription, ...fields }: Frame): string | null {
  const parts = Object.entries(fields).flatMap(([name, value]) => {
    if (value === null || (Array.isArray(value) && value.length === 0)) return [];
    const json = name === "tokens" ? tokensJson(fields.tokens) : JSON.stringify(value);
    return `,"${name}":${json}`;
  });
  if (parts.length === 0) return null;
  return `{"subscription":${JSON.stringify(subscription)}${parts.join("")}}`;
}

/** Tokens are most of the traffic, and JSON.stringify would need a list of them. */
function tokensJson(entries: readonly TokensEntry[]): string {
  const parts = entries.map(
    ({ request, offset, token_ids }) =>
      `{"request":${request},"offset":${offset},"token_ids":[${token_ids.join(",")}]}`,
  );
  return `[${parts.join(",")}]`;
}

/** The rollout's progress by the names of the wire: those of `Progress` in snake case. */
export function progressFields(progress: Progress, epoch: WeightEpoch): Fields {
  const workers = progress.workers.map(inSnakeCase);
  return { ...inSnakeCase(progress), weight_epoch: epoch, workers };
}

function inSnakeCase(fields: object): Fields {
  const renamed = Object.entries(fields).map(([name, value]) => [
    name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`),
    value,
  ]);
  return Object.fromEntries(renamed);
}
