// Parts that the answers of all generating endpoints share: the end of a response, its tokens, and the new output in a
// stream.

import type { WeightEpoch } from "../../core/base/ids.ts";
import type { StreamView } from "./event-stream.ts";
import type { Job } from "./job.ts";
import { expertsJson, type Span, tokensJson, usageJson } from "./json.ts";
import type { Cursor, Output } from "./output.ts";

export interface Answer {
  /**
   * Called once, when every output has ended: by stop, length, abort or, where its client set one, deadline. The logprob of
   * each drawn token is always there; alternatives as far as `topLogprobs` asked.
   */
  whole(job: Job): string;
  /** Called if the body's `stream` is true. */
  stream(job: Job): StreamView;
}

/** Names of weights, as clients know them. */
interface Versions {
  readonly version: (epoch: WeightEpoch) => string;
}

/** Why a response ended, and under which weights its tokens were drawn. `finish`: takes the place of its own reason. */
export function endOf(output: Output, of: Versions, finish: string | null = null): string {
  const versions = JSON.stringify(output.weightSpans(of.version));
  return `"finish_reason":"${finish ?? output.finish}","stop_reason":${JSON.stringify(output.stopReason)},"weight_versions":${versions}`;
}

export function spanOf({ response, tokens: to }: Output, from = 0): Span | null {
  return to <= from ? null : { response, from, to };
}

export function idsOf(span: Span | null): string {
  return span === null ? "[]" : tokensJson(span);
}

/**
 * Moves the cursor over the new output; null: nothing to write. Tokens that show neither as text nor as ids wait for
 * the text that they become.
 */
export function advanced(
  output: Output,
  cursor: Cursor,
  showsTokens: boolean,
): { span: Span | null; piece: string } | null {
  const span = spanOf(output, cursor.tokens);
  const piece = output.pieces.slice(cursor.pieces).join("");
  const isOver = output.finish !== null;
  if (piece === "" && !isOver && (span === null || !showsTokens)) return null;
  cursor.tokens = output.tokens;
  cursor.pieces = output.pieces.length;
  cursor.isOver = isOver;
  return { span, piece };
}

/** The fields of a stream's event that come with a response's last one. After `advanced`. */
export function restOf(
  output: Output,
  cursor: Cursor,
  of: Versions,
  finish: string | null = null,
): { end: string; experts: string } {
  const experts = cursor.isOver ? expertsJson(output.response) : "null";
  return {
    end: cursor.isOver ? endOf(output, of, finish) : `"finish_reason":null,"stop_reason":null`,
    experts: experts === "null" ? "" : `,"routed_experts":${experts}`,
  };
}

/** Usage of one response, as far as the stream has come. */
export function usageSoFar({ prompt }: Output, { tokens: completionTokens }: Cursor): string {
  return usageJson({ promptTokens: prompt.length, completionTokens, promptTokensCached: null });
}

export function escaped(written: string): string {
  return JSON.stringify(written).slice(1, -1);
}
