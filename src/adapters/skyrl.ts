// SkyRL's own route beside those of vLLM: POST /skyrl/v1/generate
// (skyrl/backends/skyrl_train/inference_servers/vllm_server_actor.py). It answers with one response to one prompt, and with
// packed arrays: the tokens from which each of its tokens was drawn (the sample's support), and routed experts. A packed
// array is {data, shape, dtype}, in this order and without spaces, because the client cuts `data` out of the body before
// it reads the JSON.

import * as v from "valibot";
import { AppError } from "../core/base/errors.ts";
import { TOP_LOGPROBS } from "../core/request/sampling-bounds.ts";
import { type Answer, endOf, idsOf, spanOf } from "../server/openai/answer.ts";
import { generates } from "../server/openai/data-plane.ts";
import { flag } from "../server/openai/fields.ts";
import { generateRequest, parseGenerate } from "../server/openai/generate.ts";
import { logprobText } from "../server/openai/json.ts";
import { expertsOf, supportAt } from "../server/openai/meta-info.ts";
import type { Output } from "../server/openai/output.ts";
import type { ParsedRequest } from "../server/openai/plan.ts";
import type { ServedModel } from "../server/openai/served-model.ts";
import { invalid } from "../server/route.ts";
import type { Adapter } from "./adapter.ts";

/** Least top_k of a support: with one token it would be the token itself. */
const SUPPORT_MIN = 2;
/** Fills a row where fewer than `top_k` tokens were left to draw from. */
const PADDING = -1;

const skyrlRequest = v.strictObject({ ...generateRequest.entries, return_sample_support: flag });

function parseSkyrl(body: v.InferOutput<typeof skyrlRequest>): ParsedRequest {
  const { return_sample_support: wantsSupport, ...fields } = body;
  const { sampling_params: params } = fields;
  if ((params.n ?? 1) !== 1) throw invalid("sampling_params.n", `is ${params.n}, not 1`);
  if (fields.stream === true) throw invalid("stream", "is true; this endpoint does not stream");
  const topK = wantsSupport === true ? supportWidth(params.top_k ?? 0) : null;
  // SkyRL comes here for one of two arrays. A request for a support does not say whether it wants experts too.
  const report = topK === null ? { return_routed_experts: true } : { logprobs: topK };
  const sampling_params = { ...params, ...report };
  const wantsLogprobs = (sampling_params.logprobs ?? null) !== null;
  return {
    ...parseGenerate({ ...fields, sampling_params }),
    answer: (model) => answerOf(model, topK, wantsLogprobs),
  };
}

function supportWidth(topK: number): number {
  if (topK >= SUPPORT_MIN && topK <= TOP_LOGPROBS.max) return topK;
  const problem = `is ${topK}, not in ${SUPPORT_MIN}..${TOP_LOGPROBS.max}, which return_sample_support needs`;
  throw invalid("sampling_params.top_k", problem);
}

/** Writes the answer. `topK` null: no support is wanted. */
function answerOf(model: ServedModel, topK: number | null, wantsLogprobs: boolean): Answer {
  const logprobsOf = (output: Output) => {
    if (!wantsLogprobs) return "null";
    const logprobs = spanOf(output)?.response.logprobs() ?? [];
    const content = [...logprobs.slice(0, output.tokens)].map(
      (logprob) => `{"logprob":${logprobText(logprob)}}`,
    );
    return `{"content":[${content.join(",")}]}`;
  };
  const supportJson = (output: Output) =>
    topK === null ? "null" : packed("int32", supportOf(output, topK), [output.tokens, topK]);
  return {
    whole(job) {
      const choices = job.outputs.map((output) => {
        const fields = [
          `"token_ids":${idsOf(spanOf(output))}`,
          endOf(output, model),
          `"logprobs":${logprobsOf(output)}`,
          `"routed_experts":${packedExperts(output)}`,
          `"rollout_sample_support":${supportJson(output)}`,
        ];
        return `{${fields.join(",")}}`;
      });
      return `{"choices":[${choices.join(",")}]}`;
    },
    stream() {
      throw new AppError("invalid_field", "stream: this endpoint does not stream");
    },
  };
}

/** A row for each token: the tokens that could have been drawn, then padding. */
function supportOf({ tokens, response }: Output, topK: number): Int32Array<ArrayBuffer> {
  const rows = new Int32Array(tokens * topK).fill(PADDING);
  for (let i = 0; i < tokens; i += 1) rows.set(supportAt(response, i, topK), i * topK);
  return rows;
}

/** The routed experts, in the smallest type that holds them: SkyRL's client refuses a larger one. */
function packedExperts(output: Output): string {
  const experts = expertsOf(output);
  if (experts === null) return "null";
  const { ids, shape } = experts;
  let largest = 0;
  for (const id of ids) largest = Math.max(largest, id);
  if (largest <= 0xff) return packed("uint8", Uint8Array.from(ids), shape);
  if (largest <= 0x7fff) return packed("int16", Int16Array.from(ids), shape);
  return packed("int32", Int32Array.from(ids), shape);
}

function packed(type: string, { buffer }: NodeJS.TypedArray, shape: readonly number[]): string {
  const data = Buffer.from(buffer as ArrayBuffer).toString("base64");
  return `{"data":"${data}","shape":[${shape.join(",")}],"dtype":"${type}"}`;
}

export const SKYRL: Adapter = {
  data: [
    generates(
      "/skyrl/v1/generate",
      "SkyRL: a response with the tokens from which each of its tokens was drawn, packed",
      { schema: skyrlRequest, parse: parseSkyrl, streams: false },
    ),
  ],
};
