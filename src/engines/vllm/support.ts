// Which sampling a stock vLLM can divide: stop after any token, and continue elsewhere (reference: SamplingParams of
// 0.32). State that counts output tokens inside the engine restarts with every request, so such a response stays whole.

import { expertsFrom, type SamplingParams } from "../../core/request/request.ts";
import type { SamplingSupport } from "../../core/rollout/worker.ts";
import type { Capabilities } from "./dialect.ts";

const DIVIDED: SamplingSupport = { kind: "divided" };
const WHOLE: SamplingSupport = { kind: "whole" };

/** Fields with state inside the engine: of a grammar, a count, or a match that has begun. */
const WHOLE_FIELDS = new Set([
  "structured_outputs",
  "bad_words",
  "stop",
  "include_stop_str_in_output",
  // Custom logits processors get their settings in these.
  "extra_args",
  "repetition_detection",
  "thinking_token_budget",
  "reasoning_ended",
]);

export function supportOf(
  sampling: SamplingParams,
  server: Pick<
    Capabilities,
    "isSpeculative" | "logprobsMax" | "reportsExperts" | "isDivisible" | "connector"
  >,
): SamplingSupport {
  if ((sampling.adapter ?? null) !== null && server.connector !== null) {
    return refused("model", "is an adapter, and the keys of its KV connector name no adapters");
  }
  const { shaping, engineFields, topLogprobs } = sampling;
  if (topLogprobs > server.logprobsMax) {
    return refused("top_logprobs", `is above ${server.logprobsMax}, the server's --max-logprobs`);
  }
  let support = server.isDivisible ? DIVIDED : WHOLE;
  for (const [field, value] of Object.entries(engineFields ?? {})) {
    if (value === null || value === undefined) continue;
    if (WHOLE_FIELDS.has(field) && !sampling.statelessFields?.includes(field)) support = WHOLE;
  }
  const scored = Number(engineFields?.prompt_logprobs ?? 0);
  if (scored < 0 ? server.logprobsMax < Number.MAX_SAFE_INTEGER : scored > server.logprobsMax) {
    const bound = `is ${scored}, and the server reports ${server.logprobsMax} at most (--max-logprobs)`;
    return refused("prompt_logprobs", bound);
  }
  const noExperts = expertsRefused(sampling, server);
  if (noExperts !== null) return noExperts;
  if (shaping === null) return support;
  // SamplingParams._validate_spec_decode: such requests are a 400.
  const reason = "is refused by a vLLM server that drafts";
  if (server.isSpeculative && shaping.minP > 0) return refused("min_p", reason);
  if (server.isSpeculative && shaping.logitBias.length > 0) return refused("logit_bias", reason);
  // A repetition penalty counts the prompt too, so it stays correct when the output has become part of the prompt.
  const countsOutput = shaping.presencePenalty !== 0 || shaping.frequencyPenalty !== 0;
  return countsOutput ? WHOLE : support;
}

/** Refuses a request for routed experts; null: they are not wanted, or the server reports them. vLLM and SGLang alike. */
export function expertsRefused(
  sampling: SamplingParams,
  { reportsExperts }: Pick<Capabilities, "reportsExperts">,
): SamplingSupport | null {
  if (expertsFrom(sampling) === null || reportsExperts) return null;
  const flag = "needs a model with experts and --enable-return-routed-experts";
  return refused("return_routed_experts", flag);
}

export function refused(field: string, reason: string): SamplingSupport {
  return { kind: "refused", field, reason };
}
