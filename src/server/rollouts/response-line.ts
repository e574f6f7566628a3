// A finished response as a line of JSON: the public format of RESPONSES.jsonl and of the rollout API's streams.

import { assert, present } from "../../core/base/assert.ts";
import { type WeightEpoch, weightEpoch } from "../../core/base/ids.ts";
import { oneLine } from "../../core/base/json-line.ts";
import type { RolloutRequest } from "../../core/request/buffer.ts";
import type { Chunk } from "../../core/request/response.ts";
import type { Text } from "../../text/text.ts";

type Finished = Pick<RolloutRequest, "response"> & {
  readonly spec: Pick<RolloutRequest["spec"], "prompt" | "sampleIndex">;
};

export interface LineOptions {
  readonly text: Pick<Text, "decode">;
  /** Whether special tokens are left out of the text. */
  readonly skipSpecial: boolean;
  readonly base?: number;
  /** The trainer's name for the weights of an epoch. Default: none was given. */
  readonly versionOf?: (epoch: WeightEpoch) => string;
}

/** A line for each response of a group, each with its line end; `group`: its client's name for it. */
export function linesOf(
  group: string,
  finished: readonly Finished[],
  options: LineOptions,
): string {
  return finished.map((one) => `${formatLine(group, one, options)}\n`).join("");
}

/** Logprob of a token without probability, as in vLLM: JSON has no infinities. */
const LOGPROB_MIN = "-9999";

function formatLine(group: string, { spec, response }: Finished, options: LineOptions): string {
  const { text, skipSpecial } = options;
  const { refusal } = response;
  const tokens = response.tokens();
  const logprobs = response.logprobs();
  assert(tokens.length === logprobs.length, "every token has a logprob");
  const finish = present(response.finish, "only a finished response has a line");
  const chunks = response.chunks.map((chunk) => JSON.stringify(chunkFields(chunk, options)));
  const written = Array.from(logprobs, (value) =>
    Number.isFinite(value) ? formatFloat32(value) : LOGPROB_MIN,
  );
  const fields = [
    `{"group":${JSON.stringify(group)}`,
    `"index":${(options.base ?? 0) + spec.sampleIndex}`,
    `"prompt_token_ids":[${spec.prompt.join(",")}]`,
    `"token_ids":[${tokens.join(",")}]`,
    `"text":${JSON.stringify(text.decode(tokens, { skipSpecial }))}`,
    `"logprobs":[${written.join(",")}]`,
    `"finish_reason":${JSON.stringify(finish)}`,
    `"weight_epoch":${epochOf(response.chunks)}`,
    `"chunks":[${chunks.join(",")}]`,
    ...(refusal ? [`"error":${JSON.stringify({ message: refusal.message })}`] : []),
  ];
  return oneLine(`${fields.join(",")}}`);
}

function chunkFields(chunk: Chunk, { versionOf }: LineOptions) {
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
function epochOf(chunks: readonly Chunk[]): WeightEpoch | null {
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

/** The shortest decimal that reads back as the same float32, also through a float64: half as long as its digits. */
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
