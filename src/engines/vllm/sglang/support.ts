// Which sampling can stop after any token and continue elsewhere on SGLang. Everything that its schema has no field for
// is refused by name.

import { expertsFrom, type SamplingParams } from "../../../core/request/request.ts";
import type { SamplingSupport } from "../../../core/rollout/worker.ts";
import { grammarOf } from "./body.ts";

/** Fields for the engine that SGLang has too. */
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
  if (expertsFrom(sampling) !== null && !server.reportsExperts) {
    const flag = "needs a model with experts and --enable-return-routed-experts";
    return refused("return_routed_experts", flag);
  }
  const { shaping, engineFields } = sampling;
  const countsOutput =
    shaping !== null &&
    (shaping.presencePenalty !== 0 ||
      shaping.frequencyPenalty !== 0 ||
      // Whether it counts the prompt depends on the release.
      shaping.repetitionPenalty !== 1);
  const hasState =
    (engineFields?.structured_outputs ?? null) !== null || (engineFields?.stop ?? null) !== null;
  return { kind: countsOutput || hasState || !server.isDivisible ? "whole" : "divided" };
}

function refused(field: string, reason: string): SamplingSupport {
  return { kind: "refused", field, reason };
}
