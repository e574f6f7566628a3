// One event of a server's stream, in the common form that the worker reads, and the parser of vLLM's JSON (0.22 to 0.32).

import { parseJson } from "../../proto/json.ts";

export type Json = Readonly<Record<string, unknown>>;

export interface EventUsage {
  readonly promptTokens: number;
  /** Output tokens of the request so far, including this event's. */
  readonly completionTokens: number;
  /** Prompt tokens found in the prefix cache; null: not reported. */
  readonly cachedTokens: number | null;
}

/** The likeliest tokens at one position: token, logprob, token, logprob ... likeliest first. */
export type Alternatives = readonly number[];

export type EngineEvent =
  | {
      readonly kind: "piece";
      readonly tokens: readonly number[];
      /** Logprobs of `tokens`; fewer if the server sent fewer. */
      readonly logprobs: readonly number[];
      readonly alternatives: readonly Alternatives[];
      /** null: more follows. "stop" ends the response, any other reason the attempt: a chunk that is not full continues. */
      readonly finishReason: string | null;
      readonly usage: EventUsage | null;
      /** Version of the weights that made the last token; only at the end of a response, from 0.32 on. */
      readonly weightVersion: string | null;
      /** The token that ended the response (SGLang). Absent: not reported. */
      readonly matched?: number;
      /** At the end of a response, `usage` is final (SGLang). Absent: a separate usage event follows (vLLM). */
      readonly isWholeUsage?: true;
    }
  | { readonly kind: "usage"; readonly usage: EventUsage }
  | { readonly kind: "done" }
  /** The server reports an error. `status` 0: not given. `retryAfterMs` null or absent: neither. */
  | {
      readonly kind: "error";
      readonly status: number;
      readonly message: string;
      readonly retryAfterMs?: number | null;
    }
  | { readonly kind: "unreadable" };

/** The `count` likeliest tokens, ties by token id. vLLM's own list may have the drawn token in addition. */
export function likeliest(pairs: [number, number][], count: number): Alternatives {
  pairs.sort((a, b) => b[1] - a[1] || a[0] - b[0]);
  return pairs.slice(0, count).flat();
}

/** Stands for a logprob that the server does not give (a token of probability zero). */
const LOGPROB_UNKNOWN = Number.NEGATIVE_INFINITY;

export function numberOr(value: unknown): number {
  return typeof value === "number" ? value : LOGPROB_UNKNOWN;
}

/** Maximum of counts and token ids. */
const COUNT_MAX = 0x7fffffff;

/** A count, an index or a token id from a server; null: it is no such number. */
export function countOf(value: unknown): number | null {
  const isCount = Number.isInteger(value) && Number(value) >= 0 && Number(value) <= COUNT_MAX;
  return isCount ? Number(value) : null;
}

export function isJson(value: unknown): value is Json {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

export type PieceEvent = Extract<EngineEvent, { kind: "piece" }>;

/** How many of the event's tokens are among the first `have` of the request: SGLang repeats them. */
export function repeatedIn({ tokens, usage }: PieceEvent, have: number): number {
  return usage === null ? 0 : Math.max(0, have - (usage.completionTokens - tokens.length));
}

export const DONE: EngineEvent = { kind: "done" };
const UNREADABLE: EngineEvent = { kind: "unreadable" };
const NONE: readonly never[] = [];

/** Reads an event. `topLogprobs`: alternatives wanted at each position. `piece` reads events with tokens or usage. */
export function readEvent(
  data: Buffer,
  topLogprobs: number,
  piece: (json: Json, topLogprobs: number) => EngineEvent = vllmPiece,
): EngineEvent {
  if (data.length === 6 && data.toString("latin1") === "[DONE]") return DONE;
  const json = parsed(data);
  if (json === null) return UNREADABLE;
  if (isJson(json.error)) return errorOf(json.error);
  if (json.object === "error") return errorOf(json);
  return piece(json, topLogprobs);
}

function vllmPiece(json: Json, topLogprobs: number): EngineEvent {
  const usage = isJson(json.usage) ? openAiUsage(json.usage) : null;
  if (usage === null && isJson(json.usage)) return UNREADABLE;
  const choices = json.choices;
  const choice: unknown = Array.isArray(choices) ? choices[0] : undefined;
  if (!isJson(choice)) return usage === null ? UNREADABLE : { kind: "usage", usage };
  const { token_ids: ids, logprobs, finish_reason: finish } = choice;
  const positions = isJson(logprobs) ? logprobs.content : undefined;
  const columns = isJson(logprobs) ? logprobs.token_logprobs : undefined;
  const names = isJson(logprobs) ? logprobs.tokens : undefined;
  return {
    kind: "piece",
    tokens: tokensOf(ids, positions, names),
    logprobs: Array.isArray(positions)
      ? positions.map((position) => numberOr(isJson(position) ? position.logprob : null))
      : Array.isArray(columns)
        ? columns.map(numberOr)
        : NONE,
    alternatives:
      topLogprobs === 0 || !isJson(logprobs) ? NONE : alternativesOf(logprobs, topLogprobs),
    finishReason: typeof finish === "string" ? finish : null,
    usage,
    weightVersion: typeof finish === "string" ? versionOf(choice.weight_versions) : null,
  };
}

function versionOf(spans: unknown): string | null {
  const last: unknown = Array.isArray(spans) ? spans.at(-1) : null;
  return isJson(last) && typeof last.version === "string" ? last.version : null;
}

/** The message of a body that reports an error, in any of vLLM's shapes. */
export function errorMessage(body: string): string {
  const json = parsed(Buffer.from(body), parseJson);
  const error = json === null ? null : isJson(json.error) ? json.error : json;
  for (const field of ["message", "detail", "error"]) {
    const value = error?.[field];
    if (typeof value === "string") return value;
    if (value !== undefined && value !== null) return written(value);
  }
  return body.slice(0, 500);
}

function errorOf(error: Json): EngineEvent {
  const { message, code } = error;
  return {
    kind: "error",
    status: typeof code === "number" ? code : 0,
    message: typeof message === "string" ? message : written(error),
  };
}

/** JSON text of a value. Events are parsed without a limit of depth, so writing one may fail. */
function written(value: unknown): string {
  try {
    return JSON.stringify(value);
  } catch {
    return "an error that is nested too deep to be shown";
  }
}

function openAiUsage(usage: Json): EventUsage | null {
  const { prompt_tokens: prompt, completion_tokens: completion, prompt_tokens_details } = usage;
  const cached = isJson(prompt_tokens_details) ? prompt_tokens_details.cached_tokens : null;
  return usageOf(prompt, completion, cached);
}

/** null: one of the values is no count. */
export function usageOf(prompt: unknown, completion: unknown, cached: unknown): EventUsage | null {
  const counts = [prompt, completion, cached].map((value) => countOf(value ?? 0));
  const [promptTokens, completionTokens, cachedCount] = counts;
  if (promptTokens == null || completionTokens == null || cachedCount == null) return null;
  const cachedTokens = (cached ?? null) === null ? null : cachedCount;
  return { promptTokens, completionTokens, cachedTokens };
}

/** The token ids. Servers without `token_ids` have them in the logprobs, if requested, as "token_id:17". */
function tokensOf(ids: unknown, positions: unknown, names: unknown): readonly number[] {
  if (Array.isArray(ids)) return ids;
  if (Array.isArray(positions)) {
    return positions.map((position) => tokenOf(isJson(position) ? position : {}));
  }
  return Array.isArray(names) ? names.map((name) => tokenOf({ token: name })) : NONE;
}

/** The id of a token; -1: it has none. */
function tokenOf({ token_id: id, token: name }: Json): number {
  const isNamed = typeof name === "string" && /^token_id:\d+$/.test(name);
  return countOf(id ?? (isNamed ? Number(name.slice(9)) : null)) ?? -1;
}

function alternativesOf(logprobs: Json, count: number): readonly Alternatives[] {
  const { content, top_logprobs: rows } = logprobs;
  if (Array.isArray(content)) {
    return content.map((position) => {
      const list: unknown = isJson(position) ? position.top_logprobs : null;
      const pairs: [number, number][] = [];
      for (const entry of Array.isArray(list) ? list : NONE) {
        if (!isJson(entry)) continue;
        // Ranks count from 1; older servers send none.
        const { rank } = entry;
        if (typeof rank === "number" && rank > count) continue;
        pairs.push([tokenOf(entry), numberOr(entry.logprob)]);
      }
      return likeliest(pairs, count);
    });
  }
  if (!Array.isArray(rows)) return NONE;
  return rows.map((row) => {
    const pairs = Object.entries(isJson(row) ? row : {}).map(([name, value]): [number, number] => [
      tokenOf({ token: name }),
      numberOr(value),
    ]);
    return likeliest(pairs, count);
  });
}

/**
 * Parses bytes as Latin-1, which is twice as fast as UTF-8. Other characters occur in strings only, and of strings only
 * an error's message is used.
 */
function parsed(data: Buffer, parse: (text: string) => unknown = JSON.parse): Json | null {
  try {
    const json = parse(data.toString("latin1"));
    return isJson(json) ? json : null;
  } catch {
    return null;
  }
}
