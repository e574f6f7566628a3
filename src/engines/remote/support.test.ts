// The table that crosses the wire answers as the worker it was asked of.

import { expect, test } from "bun:test";
import { newSimulated, newSpec } from "../../../test/suite/forwarding-suite.ts";
import { NO_SHAPING, type SamplingParams } from "../../core/request/request.ts";
import type { SamplingSupport } from "../../core/rollout/worker.ts";
import { supportOf, supportTable } from "./support.ts";

/** Honours some features, some only in one piece, and others not at all. */
function supports({ shaping, topLogprobs, engineFields }: SamplingParams): SamplingSupport {
  if (engineFields !== null && "bad_words" in engineFields) {
    return { kind: "refused", field: "bad_words", reason: "is not known" };
  }
  if (shaping !== null && shaping.minP > 0) {
    return { kind: "refused", field: "min_p", reason: "is not known" };
  }
  if (engineFields !== null && !("structured_outputs" in engineFields)) {
    const [field = ""] = Object.keys(engineFields);
    return { kind: "refused", field, reason: "is not known" };
  }
  if (shaping !== null && shaping.presencePenalty !== 0) return { kind: "whole" };
  if (engineFields !== null || topLogprobs > 5) return { kind: "whole" };
  return { kind: "divided" };
}

const table = supportTable(Object.assign(newSimulated(), { supports }));
const SAMPLINGS: [string, Partial<SamplingParams>][] = [
  ["plain sampling", {}],
  ["greedy sampling", { temperature: 0, stopTokenIds: [3] }],
  ["shaping that changes nothing", { shaping: NO_SHAPING }],
  ["a divided shaping", { shaping: { ...NO_SHAPING, topK: 3 } }],
  ["a shaping in one piece", { shaping: { ...NO_SHAPING, topK: 3, presencePenalty: -1 } }],
  ["a refused shaping", { shaping: { ...NO_SHAPING, presencePenalty: 1, minP: 0.25 } }],
  ["an engine's field in one piece", { engineFields: { structured_outputs: { regex: "a" } } }],
  ["a refused field known by name", { engineFields: { bad_words: ["a"] } }],
  ["a field that nobody knows", { engineFields: { what_is_this: 1 } }],
];

for (const [name, sampling] of SAMPLINGS) {
  test(`supportOf: the table answers for ${name} as the worker does`, () => {
    const params = newSpec(1, sampling).sampling;
    expect(supportOf(table, params)).toEqual(supports(params));
  });
}
