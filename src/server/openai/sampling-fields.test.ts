import { expect, test } from "bun:test";
import { drawingOf, type SamplingFields } from "./sampling-fields.ts";

const CONTEXT = { vocabularySize: 100, eosTokenIds: [7, 8], reportsExperts: false, at: "" };
const OWN = { topLogprobs: 0, tokensMax: 10, extraArgs: {} };

const drawn = (fields: SamplingFields, own: Partial<typeof OWN> = {}) =>
  drawingOf(fields, { ...OWN, ...own }, CONTEXT);

test("drawingOf: neutral values ask nothing of the engine", () => {
  const { sampling, seeded, n } = drawn({
    temperature: 0.7,
    top_k: -1,
    top_p: 1,
    min_p: 0,
    repetition_penalty: 1,
    presence_penalty: 0,
    frequency_penalty: 0,
    logit_bias: { 3: 0 },
    min_tokens: 0,
    bad_words: [],
    thinking_token_budget: -1,
    structured_outputs: null,
  });
  expect(sampling.shaping).toBe(null);
  expect(sampling.engineFields).toBe(null);
  expect([seeded, n]).toEqual([false, 1]);
});

test("drawingOf: each shaping value arrives under its own name", () => {
  const { shaping } = drawn({
    top_k: 5,
    top_p: 0.5,
    min_p: 0.1,
    repetition_penalty: 1.1,
    presence_penalty: 1,
    frequency_penalty: -1,
    logit_bias: { 3: -100 },
    min_tokens: 2,
  }).sampling;
  expect(shaping).toEqual({
    tokensMin: 2,
    topK: 5,
    topP: 0.5,
    minP: 0.1,
    repetitionPenalty: 1.1,
    presencePenalty: 1,
    frequencyPenalty: -1,
    logitBias: [{ token: 3, bias: -100 }],
  });
});

test("drawingOf: ignore_eos leaves the client's own stop tokens", () => {
  expect(drawn({ stop_token_ids: [3, 7] }).sampling.stopTokenIds).toEqual([7, 8, 3]);
  expect(drawn({ stop_token_ids: [3], ignore_eos: true }).sampling.stopTokenIds).toEqual([3]);
  expect(drawn({ ignore_eos: true, min_tokens: 4 }).sampling.shaping).toBe(null);
});

test("drawingOf: a seed of -1 is none, and 0 is one", () => {
  expect(drawn({ seed: -1 }).seeded).toBe(false);
  expect(drawn({ seed: 0 }).seeded).toBe(true);
});

test("drawingOf: what only the engine can do is passed on", () => {
  const { engineFields } = drawingOf(
    { structured_outputs: { regex: "a" }, bad_words: ["x"], allowed_token_ids: [1] },
    { ...OWN, extraArgs: { k: 1 } },
    CONTEXT,
  ).sampling;
  expect(engineFields).toEqual({
    structured_outputs: { regex: "a" },
    bad_words: ["x"],
    allowed_token_ids: [1],
    extra_args: { k: 1 },
  });
});
