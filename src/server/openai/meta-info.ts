// SGLang's `meta_info` of a response: beside each response of /generate, and in chats that ask for it (miles).

import { AppError } from "../../core/base/errors.ts";
import type { RolloutResponse } from "../../core/request/response.ts";
import { spanOf } from "./answer.ts";
import { logprobText } from "./json.ts";
import type { Output } from "./output.ts";
import type { ServedModel } from "./served-model.ts";

export interface MetaInfo {
  readonly id: string;
  readonly model: ServedModel;
  readonly returnsLogprobs: boolean;
  /** Number of alternatives reported for each token. */
  readonly top: number;
  /** Whether the texts of tokens are written beside their logprobs. */
  readonly writesTokens: boolean;
  /** Maximum size of a position's sampling support, all of which is reported; 0: it is not reported. */
  readonly support: number;
  readonly returnsExperts: boolean;
}

export function metaInfoJson(output: Output, about: MetaInfo): string {
  const versions = output.weightSpans(about.model.version);
  const cached = output.response.promptTokensCached;
  const meta = {
    id: about.id,
    finish_reason: finishOf(output),
    prompt_tokens: output.prompt.length,
    completion_tokens: output.tokens,
    ...(cached === null ? {} : { cached_tokens: cached }),
    weight_version: versions.at(-1)?.version ?? null,
    weight_versions: versions,
  };
  const logprobs = about.returnsLogprobs ? logprobsJson(output, about) : "";
  const support = supportJson(output, about.support);
  // An engine reports them with its last token.
  const isReported = about.returnsExperts && output.finish !== null;
  const array = isReported ? expertsOf(output) : null;
  const experts = array && `,"routed_experts":"${base64Of(Int32Array.from(array.ids))}"`;
  return `${JSON.stringify(meta).slice(0, -1)}${logprobs}${support}${experts ?? ""}}`;
}

/** Triples of logprob, token id and, if requested, text. */
function logprobsJson(output: Output, about: MetaInfo): string {
  const span = spanOf(output);
  const triples: string[] = [];
  const rows: string[] = [];
  const tokens = span?.response.tokens() ?? [];
  const logprobs = span?.response.logprobs() ?? [];
  const top = span?.response.topLogprobs() ?? null;
  for (let i = 0; i < output.tokens; i += 1) {
    triples.push(triple(logprobs[i] ?? 0, tokens[i] ?? 0, about));
    if (top === null || about.top === 0) continue;
    const row: string[] = [];
    const end = i * top.count + Math.min(about.top, top.count);
    for (let k = i * top.count; k < end; k += 1) {
      const token = top.tokens[k] ?? -1;
      if (token >= 0) row.push(triple(top.logprobs[k] ?? 0, token, about));
    }
    rows.push(`[${row.join(",")}]`);
  }
  const tops = about.top > 0 ? `,"output_top_logprobs":[${rows.join(",")}]` : "";
  return `,"output_token_logprobs":[${triples.join(",")}],"output_token_logprobs_length":${output.tokens}${tops}`;
}

function triple(logprob: number, token: number, { writesTokens, model }: MetaInfo): string {
  const written = writesTokens ? model.writtenNames(token).json : "null";
  return `[${logprobText(logprob)},${token},${written}]`;
}

/** The support of all tokens one after the other, and the offset of each. */
function supportJson({ tokens, response }: Output, widthMax: number): string {
  if (widthMax === 0) return "";
  const ids: number[] = [];
  const offsets = [0];
  for (let i = 0; i < tokens; i += 1) {
    ids.push(...supportAt(response, i, widthMax));
    offsets.push(ids.length);
  }
  const written = (numbers: number[]) => base64Of(Int32Array.from(numbers));
  return `,"top_p_token_ids":"${written(ids)}","top_p_token_offsets":"${written(offsets)}"`;
}

const NUMBERS = { "|u1": Uint8Array, "<u2": Uint16Array, "<i4": Int32Array } as const;

/** The routed experts of all layers for each token; null: the engine reported none. */
export function expertsOf({ response }: Output) {
  const array = response.experts?.array() ?? null;
  if (array === null) return null;
  const { type, shape, bytes } = array;
  const Numbers = Object.entries(NUMBERS).find(([name]) => name === type)?.[1];
  if (Numbers === undefined) {
    throw new AppError("worker_failed", `experts are of the type ${type}, not |u1, <u2 or <i4`);
  }
  const count = bytes.byteLength / Numbers.BYTES_PER_ELEMENT;
  return { shape, ids: new Numbers(bytes.buffer, bytes.byteOffset, count) };
}

function base64Of({ buffer }: Int32Array): string {
  return Buffer.from(buffer).toString("base64");
}

function finishOf(output: Output): object | null {
  switch (output.finish) {
    case null:
      return null;
    case "length":
      return { type: "length", length: output.tokens };
    case "abort":
      return { type: "abort", message: "Abort before completion" };
    default: {
      const last = output.response.tokens()[output.tokens - 1];
      return { type: "stop", matched: output.stopReason ?? last ?? null };
    }
  }
}

/** vLLM's logprob of a token that its filters removed. */
const FILTERED_LOGPROB = -9999;

/** The tokens that filters left to draw from, by an engine's alternatives: likeliest first, the drawn one included. */
export function supportAt(response: RolloutResponse, index: number, widthMax: number): number[] {
  const top = response.topLogprobs();
  const drawn = response.tokens()[index] ?? -1;
  const row: number[] = [];
  const count = top?.count ?? 0;
  for (let k = index * count; k < (index + 1) * count && row.length < widthMax; k += 1) {
    const token = top?.tokens[k] ?? -1;
    if (token >= 0 && (top?.logprobs[k] ?? FILTERED_LOGPROB) > FILTERED_LOGPROB) row.push(token);
  }
  // Equal logits at the border, or an engine's approximate filter: as SkyRL's own server does.
  if (!row.includes(drawn)) row[Math.min(row.length, widthMax - 1)] = drawn;
  return row;
}
