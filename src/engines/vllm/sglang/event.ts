// One event of SGLang's /generate (0.5.8 to 0.5.23). It lists the output so far, or only new tokens with
// --incremental-streaming-output. Both are read alike: `completion_tokens` is the total, so the position of the listed
// tokens is known.

import { npyOf } from "../../../core/request/expert-rows.ts";
import {
  type Alternatives,
  countOf,
  type EngineEvent,
  isJson,
  type Json,
  likeliest,
  numberOr,
  usageOf,
} from "../stream-event.ts";

const UNREADABLE: EngineEvent = { kind: "unreadable" };
/** SGLang's stop reason after NaN in the logits; the last token was replaced then. */
const NOT_NUMBERS = "NaN happened";
const INTERNAL_ERROR = 500;

export function sglangPiece(json: Json, topLogprobs: number): EngineEvent {
  const { meta_info: meta } = json;
  if (!isJson(meta)) return UNREADABLE;
  const { finish_reason: finish, output_token_logprobs: triples } = meta;
  const usage = usageOf(meta.prompt_tokens, meta.completion_tokens, meta.cached_tokens);
  if (usage === null || !Array.isArray(triples)) return UNREADABLE;
  const ids: unknown = json.output_ids;
  const isWhole = Array.isArray(ids) && triples.length === ids.length;
  if (!isWhole || triples.some((triple, i) => at(triple, 1) !== ids[i])) return UNREADABLE;
  const { output_top_logprobs: tops } = meta;
  const reason = isJson(finish) ? finish : null;
  if (reason?.matched === NOT_NUMBERS) {
    return { kind: "error", status: INTERNAL_ERROR, message: "its logits are not numbers" };
  }
  return {
    kind: "piece",
    tokens: ids,
    logprobs: triples.map((triple) => numberOr(at(triple, 0))),
    alternatives: Array.isArray(tops) ? tops.map((row) => pairsIn(row, topLogprobs)) : [],
    finishReason: typeof reason?.type === "string" ? reason.type : null,
    usage,
    weightVersion:
      reason !== null && typeof meta.weight_version === "string" ? meta.weight_version : null,
    ...(typeof reason?.matched === "number" ? { matched: reason.matched } : {}),
    isWholeUsage: true,
  };
}

function pairsIn(row: unknown, count: number): Alternatives {
  const pairs: readonly unknown[] = Array.isArray(row) ? row : [];
  return likeliest(
    pairs.map((pair): [number, number] => [countOf(at(pair, 1)) ?? -1, numberOr(at(pair, 0))]),
    count,
  );
}

function at(list: unknown, index: number): unknown {
  return Array.isArray(list) ? list[index] : undefined;
}

/**
 * The routed experts as an .npy file. A row holds those of all layers at a position, which are not separated here. null:
 * the numbers do not fill the rows.
 */
export function npyOfRows(numbers: Uint8Array, rows: number): Uint8Array | null {
  const width = numbers.byteLength / 4 / rows;
  if (rows < 1 || !Number.isInteger(width) || width < 1) return null;
  return npyOf({ type: "<i4", shape: [rows, width], bytes: new Uint8Array(numbers) });
}
