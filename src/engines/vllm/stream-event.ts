// One event of a server's stream in the form that reaches the worker, and the JSON shapes of vLLM's (0.22 to 0.32). It knows
// nothing of what becomes of the tokens.

import { parseJson } from "../../proto/json.ts";

export type Json = Readonly<Record<string, unknown>>;

export interface EventUsage {
  readonly promptTokens: number;
  /** Output tokens of the request so far, those of this event included. */
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
      /** null: more follows. "stop" ends the response, any other the attempt: the chunk goes on unless it is full. */
      readonly finishReason: string | null;
      readonly usage: EventUsage | null;
      /** Version of the weights that made the last token; only where the response ends, from 0.32 on. */
      readonly weightVersion: string | null;
      /** The token that ended the response, where the server names it (SGLang). Absent: not reported. */
      readonly matched?: number;
      /** Where the response ends, `usage` is all of it (SGLang). Absent: an event of its own follows for it. */
      readonly isWholeUsage?: true;
    }
  | { readonly kind: "usage"; readonly usage: EventUsage }
  | { readonly kind: "done" }
  /** `status` 0: not given. */
  | { readonly kind: "error"; readonly status: number; readonly message: string }
  | { readonly kind: "unreadable" };

/** vLLM adds the token drawn where it is not among the likeliest. Ties: the lower token first. */
export function likeliest(pairs: [number, number][], count: number): Alternatives {
  pairs.sort((a, b) => b[1] - a[1] || a[0] - b[0]);
  return pairs.slice(0, count).flat();
}

/** Logprob where a server gives none (a token of probability zero). */
const LOGPROB_UNKNOWN = Number.NEGATIVE_INFINITY;

export function numberOr(value: unknown): number {
  return typeof value === "number" ? value : LOGPROB_UNKNOWN;
}

/** Limit of counts and token ids. */
const COUNT_MAX = 0x7fffffff;

/** A whole number that a server counts or numbers something with; null: it is none. */
export function countOf(value: unknown): number | null {
  const isCount = Number.isInteger(value) && Number(value) >= 0 && Number(value) <= COUNT_MAX;
  return isCount ? Number(value) : null;
}

export function isJson(value: unknown): value is Json {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

export type PieceEvent = Extract<EngineEvent, { kind: "piece" }>;

/** Number of the event's tokens that are among the first `have` of the request: SGLang repeats those. */
export function repeatedIn({ tokens, usage }: PieceEvent, have: number): number {
  return usage === null ? 0 : Math.max(0, have - (usage.completionTokens - tokens.length));
}

const DONE: EngineEvent = { kind: "done" };
const UNREADABLE: EngineEvent = { kind: "unreadable" };
const NONE: readonly never[] = [];

/** `topLogprobs`: alternatives wanted at each position. `piece`: reads what is neither the end nor an error. */
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

/** Text of a value. Events are read without a check of their depth, which only writing limits. */
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

/** null: one of them is no count. */
export function usageOf(prompt: unknown, completion: unknown, cached: unknown): EventUsage | null {
  const counts = [prompt, completion, cached].map((one) => countOf(one ?? 0));
  const [promptTokens, completionTokens, found] = counts;
  if (promptTokens == null || completionTokens == null || found == null) return null;
  const cachedTokens = (cached ?? null) === null ? null : found;
  return { promptTokens, completionTokens, cachedTokens };
}

/** Servers that send no `token_ids` name tokens in the logprobs, if asked to: "token_id:17". */
function tokensOf(ids: unknown, positions: unknown, names: unknown): readonly number[] {
  if (Array.isArray(ids)) return ids;
  if (Array.isArray(positions)) {
    return positions.map((position) => tokenOf(isJson(position) ? position : {}));
  }
  return Array.isArray(names) ? names.map((name) => tokenOf({ token: name })) : NONE;
}

/** -1: it is no token. */
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
        if (isJson(entry) && isAmong(entry.rank, count)) {
          pairs.push([tokenOf(entry), numberOr(entry.logprob)]);
        }
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

/** Ranks count from 1; older servers do not send them. */
function isAmong(rank: unknown, count: number): boolean {
  return typeof rank !== "number" || rank <= count;
}

/**
 * The bytes are read as Latin-1, which is twice as fast: other characters occur only in strings, and only an
 * error's message is looked at.
 */
function parsed(data: Buffer, parse: (text: string) => unknown = JSON.parse): Json | null {
  try {
    const json = parse(data.toString("latin1"));
    return isJson(json) ? json : null;
  } catch {
    return null;
  }
}
