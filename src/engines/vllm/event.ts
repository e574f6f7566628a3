// The form in which events of every server's streams reach the worker, and what readers of their JSON share.

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

export type StreamEvent =
  | {
      readonly kind: "piece";
      readonly tokens: readonly number[];
      /** As long as `tokens`, unless the server sent fewer. */
      readonly logprobs: readonly number[];
      readonly alternatives: readonly Alternatives[];
      /** null: more follows. */
      readonly finishReason: string | null;
      readonly usage: EventUsage | null;
      /** Of the weights that made the last token; only where the response ends, from 0.32 on. */
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

/** Where a server gives no logprob (a token of probability zero). */
const LOGPROB_UNKNOWN = Number.NEGATIVE_INFINITY;

export function numberOr(value: unknown): number {
  return typeof value === "number" ? value : LOGPROB_UNKNOWN;
}

export function isJson(value: unknown): value is Json {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** Columns of an event's tokens that come after the first `have` of the request: SGLang repeats those before. */
export function freshIn(event: Extract<StreamEvent, { kind: "piece" }>, have: number) {
  const { tokens, logprobs, alternatives, usage } = event;
  const from = usage === null ? have : usage.completionTokens - tokens.length;
  const skipped = Math.max(0, have - from);
  return {
    tokens: tokens.slice(skipped),
    logprobs: logprobs.slice(skipped),
    alternatives: alternatives.slice(skipped),
  };
}
