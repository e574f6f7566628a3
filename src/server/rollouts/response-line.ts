// A finished response as a line of JSON: the public format of RESPONSES.jsonl and of the rollout API's streams.

import { assert, present } from "../../core/base/assert.ts";
import { type WeightEpoch, weightEpoch } from "../../core/base/ids.ts";
import { oneLine } from "../../core/base/json-line.ts";
import type { Request } from "../../core/request/buffer.ts";
import type { ResponseEnd } from "../../core/request/request.ts";
import type { Chunk, Refusal } from "../../core/request/response.ts";

/** One response, complete. `logprobs[i]` belongs to `tokenIds[i]`. */
export interface FinishedResponse {
  readonly group: string;
  readonly index: number;
  readonly promptTokenIds: Int32Array;
  readonly tokenIds: Int32Array;
  readonly text: string;
  readonly logprobs: Float32Array;
  readonly finishReason: ResponseEnd;
  /** The trainer's name for the weights of an epoch; absent: none was given. */
  readonly versionOf?: (epoch: WeightEpoch) => string;
  readonly chunks: readonly Chunk[];
  /** Reason why an engine refused the request; null or absent: none did. */
  readonly refusal?: Refusal | null;
}

/** `own`: the names under which its client knows it, and its text. */
export function finishedResponse(
  { spec, response }: Request,
  own: Pick<FinishedResponse, "group" | "index" | "text" | "versionOf">,
): FinishedResponse {
  return {
    ...own,
    promptTokenIds: spec.prompt,
    tokenIds: response.tokens(),
    logprobs: response.logprobs(),
    finishReason: present(response.finish, "only a finished response has a line"),
    chunks: response.chunks,
    refusal: response.refusal,
  };
}

/** JSON has no infinities: as vLLM has it, of a token without probability. */
const LOGPROB_MIN = "-9999";

/** One response as a line of JSON, without its line end. */
export function formatLine(response: FinishedResponse): string {
  assert(response.tokenIds.length === response.logprobs.length, "every token has a logprob");
  const chunks = response.chunks.map((chunk) => JSON.stringify(chunkFields(chunk, response)));
  const logprobs = Array.from(response.logprobs, (value) =>
    Number.isFinite(value) ? formatFloat32(value) : LOGPROB_MIN,
  );
  const { refusal } = response;
  const fields = [
    `{"group":${JSON.stringify(response.group)}`,
    `"index":${response.index}`,
    `"prompt_token_ids":[${response.promptTokenIds.join(",")}]`,
    `"token_ids":[${response.tokenIds.join(",")}]`,
    `"text":${JSON.stringify(response.text)}`,
    `"logprobs":[${logprobs.join(",")}]`,
    `"finish_reason":${JSON.stringify(response.finishReason)}`,
    `"weight_epoch":${epochOf(response)}`,
    `"chunks":[${chunks.join(",")}]`,
    ...(refusal ? [`"error":${JSON.stringify({ message: refusal.message })}`] : []),
  ];
  return oneLine(`${fields.join(",")}}`);
}

function chunkFields(chunk: Chunk, { versionOf }: FinishedResponse) {
  const { workerId, epoch, weights, offset, tokens } = chunk;
  return {
    worker: workerId,
    offset,
    tokens,
    weight_epoch: epoch,
    ...(versionOf === undefined ? {} : { weight_version: versionOf(epoch) }),
    ...(weights === null ? {} : { weights }),
  };
}

/** The epoch of all tokens; null: they are of several, which the chunks name. */
function epochOf({ chunks }: FinishedResponse): WeightEpoch | null {
  let epoch: WeightEpoch | null = null;
  for (const chunk of chunks) {
    if (chunk.tokens === 0) continue;
    if (epoch !== null && chunk.epoch !== epoch) return null;
    epoch = chunk.epoch;
  }
  // Without tokens that of its last chunk; a response that was given up before its first chunk has none.
  return epoch ?? chunks.at(-1)?.epoch ?? weightEpoch(0);
}

/** 9 significant decimal digits distinguish any two float32 (IEEE 754, 5.12.2); most need 7 or 8. */
const DIGITS_MAX = 9;
const DIGITS_FIRST = 7;

/**
 * The shortest decimal that reads back as the same float32, also through a float64: the file is compared
 * bit for bit by its readers, and "-1.3862944" is half as long as the float64 digits of the same number.
 */
export function formatFloat32(value: number): string {
  assert(Number.isFinite(value), "JSON has no other than finite numbers");
  if (value === 0) return Object.is(value, -0) ? "-0" : "0";
  let digits = DIGITS_FIRST;
  while (digits < DIGITS_MAX && !readsBack(value, digits)) digits += 1;
  while (digits > 1 && readsBack(value, digits - 1)) digits -= 1;
  assert(readsBack(value, digits), "9 digits are enough for a float32");
  return String(Number(value.toPrecision(digits)));
}

function readsBack(value: number, digits: number): boolean {
  return Math.fround(Number(value.toPrecision(digits))) === value;
}
