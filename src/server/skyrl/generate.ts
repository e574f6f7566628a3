// SkyRL's POST /skyrl/v1/generate (skyrl/backends/skyrl_train/inference_servers/vllm_server_actor.py): one response to
// one prompt, and the tokens from which each of its tokens was drawn, as a packed array: {data, shape, dtype}, in this
// order and without spaces, because its client cuts `data` out of the body before it reads the JSON.

import * as v from "valibot";
import { AppError } from "../../base/errors.ts";
import { TOP_LOGPROBS } from "../../request/sampling-bounds.ts";
import { endOf, idsOf, spanOf } from "../openai/completions.ts";
import type { StreamView } from "../openai/event-stream.ts";
import { checked, flag } from "../openai/fields.ts";
import { generateRequest, prepareGenerate } from "../openai/generate.ts";
import type { Job } from "../openai/job.ts";
import { logprobText } from "../openai/json.ts";
import type { Output } from "../openai/output.ts";
import type { Answer, DataPlane, Prepared } from "../openai/plane.ts";
import { invalid } from "../openai/sampling-fields.ts";
import type { Exchange } from "../route.ts";

/** A support of one token says nothing that the token itself does not. */
const SUPPORT_MIN = 2;
/** No token: fewer than `top_k` were left to draw from. */
const PADDING = -1;
/** What vLLM writes for a token that its filters took out. */
const FILTERED_LOGPROB = -9999;

export const skyrlRequest = v.strictObject({
  ...generateRequest.entries,
  return_sample_support: flag,
});

export function prepareSkyrl(plane: DataPlane, exchange: Exchange, body: unknown): Prepared {
  const { return_sample_support: wantsSupport, ...fields } = checked(skyrlRequest, body);
  const { sampling_params: params } = fields;
  if ((params.n ?? 1) !== 1) throw invalid("sampling_params.n", `is ${params.n}, not 1`);
  if (fields.stream === true) throw invalid("stream", "is true; this endpoint does not stream");
  if (wantsSupport !== true) {
    // SkyRL comes here for one of two arrays; the engine decides about experts by a flag of its own.
    const sampling_params = { ...params, return_routed_experts: true };
    return prepareGenerate(plane, exchange, { ...fields, sampling_params });
  }
  const topK = params.top_k ?? 0;
  if (topK < SUPPORT_MIN || topK > TOP_LOGPROBS.max) {
    const problem = `is ${topK}, not in ${SUPPORT_MIN}..${TOP_LOGPROBS.max}, which return_sample_support needs`;
    throw invalid("sampling_params.top_k", problem);
  }
  const sampling_params = { ...params, logprobs: topK };
  const prepared = prepareGenerate(plane, exchange, { ...fields, sampling_params });
  return { ...prepared, answer: new SupportAnswer(plane, topK) };
}

class SupportAnswer implements Answer {
  readonly #plane: DataPlane;
  readonly #topK: number;

  constructor(plane: DataPlane, topK: number) {
    this.#plane = plane;
    this.#topK = topK;
  }

  whole(job: Job): string {
    const choices = job.outputs.map((output) => {
      const content = [...(spanOf(output, 0)?.response.logprobs() ?? [])]
        .slice(0, output.tokens)
        .map((logprob) => `{"logprob":${logprobText(logprob)}}`);
      const support = packed(supportOf(output, this.#topK), [output.tokens, this.#topK]);
      return `{"token_ids":${idsOf(output, 0)},${endOf(output, this.#plane)},"logprobs":{"content":[${content.join(",")}]},"routed_experts":null,"rollout_sample_support":${support}}`;
    });
    return `{"choices":[${choices.join(",")}]}`;
  }

  stream(): StreamView {
    throw new AppError("invalid_field", "stream: this endpoint does not stream");
  }
}

/** A row for each token: what could have been drawn, likeliest first, then padding. The drawn token is always there. */
function supportOf(output: Output, topK: number): Int32Array<ArrayBuffer> {
  const rows = new Int32Array(output.tokens * topK).fill(PADDING);
  const response = spanOf(output, 0)?.response ?? null;
  const top = response?.topLogprobs() ?? null;
  if (response === null || top === null) return rows;
  const tokens = response.tokens();
  for (let i = 0; i < output.tokens; i += 1) {
    const row = rows.subarray(i * topK, (i + 1) * topK);
    let count = 0;
    for (let k = i * top.count; k < (i + 1) * top.count && count < topK; k += 1) {
      const token = top.tokens[k] ?? PADDING;
      if (token < 0 || !((top.logprobs[k] ?? FILTERED_LOGPROB) > FILTERED_LOGPROB)) continue;
      row[count] = token;
      count += 1;
    }
    const drawn = tokens[i] ?? PADDING;
    // Equal logits at the border, or an engine's approximate filter: as SkyRL's own server does.
    if (!row.includes(drawn)) row[Math.min(count, topK - 1)] = drawn;
  }
  return rows;
}

function packed(array: Int32Array<ArrayBuffer>, shape: readonly number[]): string {
  const data = Buffer.from(array.buffer).toString("base64");
  return `{"data":"${data}","shape":[${shape.join(",")}],"dtype":"int32"}`;
}
