// The body of one chunk's request to SGLang's /generate (GenerateReqInput and SamplingParams of 0.5.23), and which sampling it
// can divide. A field without a counterpart in its schema is refused by name.

import { fold32 } from "../../../core/base/hash.ts";
import type { DrawKey, SamplingParams } from "../../../core/request/request.ts";
import type { SamplingSupport } from "../../../core/rollout/worker.ts";
import { shapingFields } from "../body.ts";
import type { ChunkRequest, RequestForm } from "../dialect.ts";
import { expertsRefused, refused } from "../support.ts";

/**
 * The seed of all chunks of a response: with --enable-deterministic-inference SGLang draws each token by the seed and the
 * token's position; without it, seeds are ignored. Older releases store 32 bits.
 */
export function sglangSeed({ hi, lo }: DrawKey): number {
  return fold32(hi, lo) >>> 1;
}

export function sglangBody(chunk: ChunkRequest, form: RequestForm): string {
  const { spec } = chunk;
  const { sampling } = spec;
  const params: Record<string, unknown> = {
    max_new_tokens: chunk.tokensMax,
    ...drawing(chunk, form),
    skip_special_tokens: false,
    // What ends a response is a part of it.
    no_stop_trim: true,
    ...(form.hasStreamSettings ? { stream_interval: chunk.streamInterval } : {}),
  };
  const top: Record<string, unknown> = {
    rid: ridOf(chunk),
    sampling_params: params,
    stream: true,
    return_logprob: true,
    logprob_start_len: -1,
    ...(sampling.topLogprobs > 0 ? { top_logprobs_num: sampling.topLogprobs } : {}),
    ...(chunk.expertsFrom === null
      ? {}
      : { return_routed_experts: true, routed_experts_start_len: chunk.expertsFrom }),
    ...((sampling.adapter ?? null) === null ? {} : { lora_path: sampling.adapter }),
    // Separates KV as vLLM's cache_salt does; the epoch's end empties the cache as well.
    extra_key: chunk.cacheSalt,
    ...(form.hasPriorities
      ? { priority: form.highestFirst === true ? -chunk.priority : chunk.priority }
      : {}),
  };
  // The ids are written by hand: they are most of the body, and JSON.stringify would want a plain array.
  return `{"input_ids":[${chunk.tokens.join(",")}],${JSON.stringify(top).slice(1)}`;
}

/** A request's id. SGLang aborts all requests whose ids begin with a given one, so it must also be unique to the run. */
export function ridOf({ name, run }: Pick<ChunkRequest, "name" | "run">): string {
  return `${name}-${run}.`;
}

function drawing(chunk: ChunkRequest, { hasSeeds }: RequestForm): Record<string, unknown> {
  const { spec } = chunk;
  const { temperature, stopTokenIds, engineFields } = spec.sampling;
  const fields: Record<string, unknown> = {
    temperature,
    // It ignores `stop_token_ids` too. Without it the model's own EOS ends the attempt; where that is no stop of the
    // response, the next chunk continues after it. A response in one piece cannot: its stops are found in what comes.
    ignore_eos:
      (stopTokenIds.length === 0 || !spec.divisible) && engineFields?.ignore_eos !== false,
    stop_token_ids: stopTokenIds,
  };
  if (temperature > 0 && hasSeeds) fields.sampling_seed = sglangSeed(spec.draw);
  if (Array.isArray(engineFields?.stop)) fields.stop = engineFields.stop;
  Object.assign(fields, grammarOf(spec.sampling));
  return Object.assign(fields, shapingFields(chunk, "min_new_tokens"));
}

/** Kinds of structured output: vLLM's name and SGLang's. */
const GRAMMARS = {
  json: "json_schema",
  regex: "regex",
  grammar: "ebnf",
  structural_tag: "structural_tag",
} as const;

/** SGLang's field for the structured output; null: it has none. */
function grammarOf({ engineFields }: SamplingParams): object | null {
  const grammars = Object.entries(Object(engineFields?.structured_outputs)).filter(
    ([, value]) => value !== null && value !== undefined,
  );
  const [first, ...others] = grammars;
  if (first === undefined) return {};
  const [kind, value] = first;
  const name = Object.entries(GRAMMARS).find(([vllm]) => vllm === kind)?.[1];
  if (name === undefined || others.length > 0) return null;
  return { [name]: typeof value === "string" ? value : JSON.stringify(value) };
}

/** Engine fields that have a counterpart in SGLang. */
const KNOWN: ReadonlySet<string> = new Set([
  "ignore_eos",
  "structured_outputs",
  "return_routed_experts",
  "routed_experts_prompt_start",
  "stop",
  "include_stop_str_in_output",
]);

export function sglangSupport(
  sampling: SamplingParams,
  server: { readonly isDivisible: boolean; readonly reportsExperts: boolean },
): SamplingSupport {
  const fields = Object.entries(sampling.engineFields ?? {}).filter(
    ([, value]) => value !== null && value !== undefined,
  );
  const unknown = fields.find(([field]) => !KNOWN.has(field))?.[0];
  if (unknown !== undefined) return refused(unknown, "has no counterpart in SGLang's /generate");
  if (grammarOf(sampling) === null) {
    return refused("structured_outputs", "is not one of json, regex, grammar, structural_tag");
  }
  const noExperts = expertsRefused(sampling, server);
  if (noExperts !== null) return noExperts;
  const { shaping, engineFields } = sampling;
  const countsOutput =
    shaping !== null &&
    (shaping.presencePenalty !== 0 ||
      shaping.frequencyPenalty !== 0 ||
      // Whether it counts the prompt depends on the release.
      shaping.repetitionPenalty !== 1);
  const hasState = [engineFields?.structured_outputs, engineFields?.stop].some(
    (value) => value != null,
  );
  return { kind: countsOutput || hasState || !server.isDivisible ? "whole" : "divided" };
}
