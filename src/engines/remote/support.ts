// What a worker can do with sampling parameters, as data that can be sent: its answer to each single
// feature. The features of one request are then answered for by the strictest of theirs.

import {
  type LogitShaping,
  NO_SHAPING,
  SAMPLING_DEFAULTS,
  type SamplingParams,
} from "../../core/request/request.ts";
import type { SamplingSupport, Worker } from "../../core/rollout/worker.ts";

/** Support by feature; an absent feature means divided. */
export type SupportTable = ReadonlyMap<string, SamplingSupport>;

const DIVIDED: SamplingSupport = { kind: "divided" };

const BASE: SamplingParams = {
  temperature: 1,
  seed: 0,
  tokensMax: 16,
  stopTokenIds: [],
  ...SAMPLING_DEFAULTS,
};

/** One value of each kind of shaping that does something. */
const SHAPINGS: Partial<LogitShaping>[] = [
  { tokensMin: 1 },
  { topK: 1 },
  { topP: 0.5 },
  { minP: 0.5 },
  { repetitionPenalty: 1.5 },
  { presencePenalty: 1 },
  { frequencyPenalty: 1 },
  { logitBias: [{ token: 0, bias: 1 }] },
];

/** Represents all fields of an engine's API that have no feature of their own here. */
const OTHER_FIELD = "other_field";

/** Fields of vLLM's sampling parameters that differ in whether their state survives a chunk's end. */
const ENGINE_FIELDS = [
  OTHER_FIELD,
  "allowed_token_ids",
  "bad_words",
  "cache_salt",
  "detokenize",
  "guided_json",
  "include_stop_str_in_output",
  "logits_processors",
  "prompt_logprobs",
  "skip_special_tokens",
  "spaces_between_special_tokens",
  "structured_outputs",
  "thinking_token_budget",
  "truncate_prompt_tokens",
];

/** Queries `worker` about each feature alone. */
export function supportTable(worker: Worker): SupportTable {
  const table = new Map<string, SamplingSupport>();
  const ask = (feature: string, sampling: Partial<SamplingParams>) => {
    const support = worker.supports({ ...BASE, ...sampling });
    if (support.kind !== "divided") table.set(feature, support);
  };
  ask("plain", {});
  ask("greedy", { temperature: 0 });
  ask("stop_token_ids", { stopTokenIds: [0] });
  ask("top_logprobs", { topLogprobs: 1 });
  // Some workers take shaping as one: so does a request whose shaping changes nothing.
  ask("shaping", { shaping: NO_SHAPING });
  for (const shaping of SHAPINGS) {
    const [name] = Object.keys(shaping);
    ask(`shaping.${name}`, { shaping: { ...NO_SHAPING, ...shaping } });
  }
  for (const field of ENGINE_FIELDS) {
    ask(`engine.${field}`, { engineFields: { [field]: true } });
  }
  return table;
}

/** The worker's answer for `sampling`, by its table. */
export function supportOf(table: SupportTable, sampling: SamplingParams): SamplingSupport {
  if ((sampling.adapter ?? null) !== null) {
    const reason = "is an adapter, which is not known over the link";
    return { kind: "refused", field: "model", reason };
  }
  let strictest = DIVIDED;
  for (const feature of featuresOf(sampling)) {
    const support = table.get(feature) ?? DIVIDED;
    if (support.kind === "refused") return support;
    if (support.kind === "whole") strictest = support;
  }
  for (const field of Object.keys(sampling.engineFields ?? {})) {
    const support = table.get(`engine.${ENGINE_FIELDS.includes(field) ? field : OTHER_FIELD}`);
    if (support?.kind === "refused") {
      return support.field === OTHER_FIELD ? { ...support, field } : support;
    }
    if (support?.kind === "whole") strictest = support;
  }
  return strictest;
}

function featuresOf(sampling: SamplingParams): string[] {
  const features = ["plain"];
  if (sampling.temperature === 0) features.push("greedy");
  if (sampling.stopTokenIds.length > 0) features.push("stop_token_ids");
  if (sampling.topLogprobs > 0) features.push("top_logprobs");
  const { shaping } = sampling;
  if (shaping !== null) {
    features.push("shaping");
    for (const name of Object.keys(NO_SHAPING) as (keyof LogitShaping)[]) {
      const value = shaping[name];
      const isOff = Array.isArray(value) ? value.length === 0 : value === NO_SHAPING[name];
      if (!isOff) features.push(`shaping.${name}`);
    }
  }
  return features;
}
