import { expect, test } from "bun:test";
import * as v from "valibot";
import { checked } from "./fields.ts";
import { drawingOf, SAMPLING_ENTRIES, type SamplingFields } from "./sampling-fields.ts";

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

test("drawingOf: greedy drawing needs no selection of likely tokens", () => {
  expect(drawn({ temperature: 0, top_k: 5, top_p: 0.5, min_p: 0.1 }).sampling.shaping).toBe(null);
});

test("drawingOf: ignore_eos leaves the client's own stop tokens", () => {
  expect(drawn({ stop_token_ids: [3, 7] }).sampling.stopTokenIds).toEqual([7, 8, 3]);
  expect(drawn({ stop_token_ids: [3], ignore_eos: true }).sampling.stopTokenIds).toEqual([3]);
  expect(drawn({ ignore_eos: true, min_tokens: 4 }).sampling.shaping).toBe(null);
});

test("SAMPLING_ENTRIES: what no engine could draw with names field, value and bound", () => {
  const problem = (fields: object) => {
    try {
      checked(v.strictObject(SAMPLING_ENTRIES), fields);
      return null;
    } catch (error) {
      return error instanceof Error ? error.message : String(error);
    }
  };
  const bound = "not 0 or in 1e-10..1000000";
  expect(problem(JSON.parse('{"temperature":1e999}'))).toBe(
    `request: temperature is Infinity, ${bound}`,
  );
  for (const temperature of [1e-320, -1, 1e7]) {
    expect(problem({ temperature })).toBe(`request: temperature is ${temperature}, ${bound}`);
  }
  for (const temperature of [0, 1e-10, 1e-6, 1, 1e6]) expect(problem({ temperature })).toBe(null);
  expect(problem({ repetition_penalty: 1e-38 })).toContain("is 1e-38, not in 0.001..1000");
  expect(problem({ stop_token_ids: new Array(4097).fill(1) })).toContain("more than 4096");
});

test("drawingOf: too many biases, or one without end, are refused", () => {
  const many = Object.fromEntries(Array.from({ length: 4097 }, (_, token) => [token, 1]));
  expect(() => drawn({ logit_bias: many })).toThrow("4097 entries, more than 4096");
  expect(() => drawn({ logit_bias: JSON.parse('{"3":-1e999}') })).toThrow("3 -Infinity, not a");
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

test("drawingOf: names the field that is out of bounds", () => {
  expect(() => drawn({ min_tokens: 11 })).toThrow("min_tokens is 11, beyond max_tokens, 10");
  expect(() => drawn({ stop_token_ids: [100] })).toThrow("stop_token_ids holds token 100");
  expect(() => drawn({ logit_bias: { 100: 1 } })).toThrow("logit_bias names token 100");
  expect(() => drawn({ logit_bias: { x: 1 } })).toThrow("logit_bias names token x");
  expect(() => drawn({ logit_bias: { 1: 101 } })).toThrow("logit_bias gives token 1 101");
  expect(() => drawn({ stop: "" })).toThrow("stop is an empty text");
});
