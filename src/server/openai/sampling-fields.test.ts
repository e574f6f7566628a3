import { expect, test } from "bun:test";
import { NO_SHAPING } from "../../core/request/request.ts";
import { drawingOf, type SamplingFields } from "./sampling-fields.ts";

const CONTEXT = { vocabularySize: 100, eosTokenIds: [7, 8], reportsExperts: false, at: "" };
const OWN = { topLogprobs: 0, tokensMax: 10, extraArgs: {} };

const drawn = (fields: SamplingFields, own: Partial<typeof OWN> = {}) =>
  drawingOf(fields, { ...OWN, ...own }, CONTEXT);

test("drawingOf: neutral values ask nothing of the engine", () => {
  const filters = { temperature: 0.7, top_k: -1, top_p: 1, min_p: 0, min_tokens: 0 };
  const penalties = { repetition_penalty: 1, presence_penalty: 0, frequency_penalty: 0 };
  const engines = { bad_words: [], thinking_token_budget: -1, structured_outputs: null };
  const biases = { logit_bias: { 3: 0 } };
  const { sampling, seeded, n } = drawn({ ...filters, ...penalties, ...biases, ...engines });
  expect(sampling.shaping).toBe(null);
  expect(sampling.engineFields).toBe(null);
  expect([seeded, n]).toEqual([false, 1]);
});

test.each([
  [{ top_k: 5 }, { topK: 5 }],
  [
    { top_p: 0.5, min_p: 0.1 },
    { topP: 0.5, minP: 0.1 },
  ],
  [{ repetition_penalty: 1.1 }, { repetitionPenalty: 1.1 }],
  [
    { presence_penalty: 1, frequency_penalty: -1 },
    { presencePenalty: 1, frequencyPenalty: -1 },
  ],
  [{ logit_bias: { 3: -100 } }, { logitBias: [{ token: 3, bias: -100 }] }],
  [{ min_tokens: 2 }, { tokensMin: 2 }],
])("drawingOf: %j arrives under its own name", (fields, shaping) => {
  expect(drawn(fields).sampling.shaping).toEqual({ ...NO_SHAPING, ...shaping });
});

test("drawingOf: ignore_eos leaves the client's own stop tokens", () => {
  expect(drawn({ stop_token_ids: [3, 7] }).sampling.stopTokenIds).toEqual([7, 8, 3]);
  expect(drawn({ stop_token_ids: [3], ignore_eos: true }).sampling.stopTokenIds).toEqual([3]);
  expect(drawn({ ignore_eos: true, min_tokens: 4 }).sampling.shaping).toBe(null);
});

test("drawingOf: a seed of -1 is none, and 0 is one", () => {
  expect([-1, 0].map((seed) => drawn({ seed }).seeded)).toEqual([false, true]);
});

test("drawingOf: what only the engine can do is passed on", () => {
  const own = { structured_outputs: { regex: "a" }, bad_words: ["x"], allowed_token_ids: [1] };
  const { engineFields } = drawn(own, { extraArgs: { k: 1 } }).sampling;
  expect(engineFields).toEqual({ ...own, extra_args: { k: 1 } });
});
