import { expect, test } from "bun:test";
import { samplingOf, specOf } from "../../../test/suite/request-spec.ts";
import { groupId, weightEpoch } from "../../core/base/ids.ts";
import { drawKey, NO_SHAPING, type SamplingParams } from "../../core/request/request.ts";
import { chunkBody, chunkSeed } from "./body.ts";
import type { ChunkRequest, RequestForm } from "./dialect.ts";
import { supportOf } from "./support.ts";

const PLAIN: SamplingParams = samplingOf({ seed: 3, tokensMax: 100, stopTokenIds: [2, 7] });
const GENERATE: RequestForm = {
  endpoint: "generate",
  model: "m",
  hasPriorities: true,
  logprobsMax: 20,
  hasStreamSettings: true,
  hasSeeds: true,
};
const COMPLETIONS: RequestForm = { ...GENERATE, endpoint: "completions" };
const OLD: RequestForm = { ...COMPLETIONS, hasPriorities: false, hasStreamSettings: false };

const shaped = (shaping: Partial<typeof NO_SHAPING>) => ({
  shaping: { ...NO_SHAPING, ...shaping },
});

function bodyOf(
  sampling: Partial<SamplingParams>,
  dialect: RequestForm,
  ask: Partial<ChunkRequest> = {},
) {
  const text = chunkBody(
    {
      name: "ft-5-1-0",
      spec: specOf(5, {
        sampleIndex: 3,
        prompt: Int32Array.of(10, 11),
        sampling: { ...PLAIN, ...sampling },
        draw: drawKey(3, "g", 3),
      }),
      offset: 4,
      tokens: Int32Array.of(10, 11, 1, 2, 3, 4),
      tokensMax: 32,
      isLast: false,
      priority: -4,
      cacheSalt: "s-w1",
      run: "s",
      epoch: weightEpoch(1),
      streamInterval: 2,
      draft: null,
      form: "stream",
      expertsFrom: null,
      ...ask,
    },
    dialect,
  );
  return JSON.parse(text);
}

test("chunkBody: generate carries the whole text and every setting of the chunk", () => {
  expect(bodyOf({}, GENERATE)).toEqual({
    token_ids: [10, 11, 1, 2, 3, 4],
    model: "m",
    request_id: "ft-5-1-0",
    stream: true,
    stream_options: { include_usage: true, continuous_usage_stats: true },
    cache_salt: "s-w1",
    priority: -4,
    sampling_params: {
      max_tokens: 32,
      temperature: 1,
      ignore_eos: true,
      stop_token_ids: [2, 7],
      seed: chunkSeed(drawKey(3, "g", 3), 4),
      logprobs: 0,
      stream_interval: 2,
      detokenize: false,
      extra_args: {
        foretoken_group: "g",
        foretoken_sample: 3,
        foretoken_offset: 4,
        foretoken_last: 0,
        foretoken_draft: 0,
        foretoken_run: "s",
        foretoken_epoch: 1,
        foretoken_seed: chunkSeed(drawKey(3, "g", 3), 0),
      },
    },
  });
});

test("chunkBody: completions sends the same fields, flat, and requests token ids", () => {
  const body = bodyOf({ topLogprobs: 2 }, COMPLETIONS);
  expect(body).toMatchObject({ prompt: [10, 11, 1, 2, 3, 4], max_tokens: 32, logprobs: 2 });
  expect(body).toMatchObject({ return_token_ids: true, return_tokens_as_token_ids: true });
  expect(body.vllm_xargs).toMatchObject({ foretoken_group: "g" });
  expect(body.detokenize).toBeUndefined();
  const { priority, stream_interval: interval, stream_options: options } = bodyOf({}, OLD);
  expect([priority, interval, options]).toEqual([undefined, undefined, { include_usage: true }]);
});

test("chunkBody: settings of the sampling in vLLM's words", () => {
  const of = (sampling: Partial<SamplingParams>, ask: Partial<ChunkRequest> = {}) =>
    bodyOf(sampling, GENERATE, ask).sampling_params;
  // What is left of it, and at most the chunk.
  const least = [0, 4, 10, 1000].map((tokensMin) => of(shaped({ tokensMin })).min_tokens);
  expect(least).toEqual([undefined, undefined, 6, 32]);
  // One logprob more than wanted, where it may be.
  const asked = [0, 1, 19, 20].map((topLogprobs) => of({ topLogprobs }).logprobs);
  expect(asked).toEqual([0, 2, 20, 20]);
  expect(of({ temperature: 0 }).seed).toBeUndefined();
  const penalties = { repetitionPenalty: 1.1, presencePenalty: 0.2, frequencyPenalty: 0.3 };
  const bounds = { topK: 5, topP: 0.9, minP: 0.1, logitBias: [{ token: 9, bias: -1 }] };
  expect(of(shaped({ ...penalties, ...bounds }))).toMatchObject({
    top_k: 5,
    top_p: 0.9,
    min_p: 0.1,
    repetition_penalty: 1.1,
    presence_penalty: 0.2,
    frequency_penalty: 0.3,
    logit_bias: { "9": -1 },
  });
  // A draft source takes the place of the group.
  const draft = { groupId: groupId("g#3"), sampleIndex: 0 };
  expect(of({}, { draft }).extra_args).toMatchObject({
    foretoken_group: "g#3",
    foretoken_sample: 0,
    foretoken_offset: 4,
    foretoken_draft: 1,
  });
});

test("chunkBody: the engine's own fields go where the endpoint expects them", () => {
  const structure = { structured_outputs: { json: {} }, extra_args: { mine: 1 } };
  const engineFields = { reasoning_ended: true, bad_words: null, ...structure };
  const body = bodyOf({ engineFields }, GENERATE);
  expect(body.reasoning_ended).toBe(true);
  expect(body.sampling_params.structured_outputs).toEqual({ json: {} });
  expect(body.sampling_params.extra_args).toMatchObject({ mine: 1, foretoken_group: "g" });
  expect("bad_words" in body.sampling_params).toBe(false);
  expect(bodyOf({ engineFields }, COMPLETIONS).reasoning_ended).toBe(true);
});

test("chunkSeed: other parts and other responses have other seeds, all exact integers", () => {
  const seeds = new Set<number>();
  for (let sample = 0; sample < 20; sample += 1) {
    for (let offset = 0; offset < 50; offset += 1) {
      const seed = chunkSeed(drawKey(1, "g", sample), offset);
      expect(Number.isSafeInteger(seed) && seed >= 0).toBe(true);
      seeds.add(seed);
    }
  }
  expect(seeds.size).toBe(1000);
  expect(chunkSeed(drawKey(1, "g", 0), 5)).toBe(chunkSeed(drawKey(1, "g", 0), 5));
});

const SERVER = {
  isSpeculative: false,
  logprobsMax: 20,
  reportsExperts: false,
  isDivisible: true,
  connector: null,
};
const supportFor = (sampling: Partial<SamplingParams>, server = SERVER) =>
  supportOf({ ...PLAIN, ...sampling }, server);

test("supportOf: what the server would refuse is refused by name", () => {
  expect(supportFor({ topLogprobs: 20 }, { ...SERVER, logprobsMax: 5 })).toMatchObject({
    kind: "refused",
    field: "top_logprobs",
  });
  const drafting = { ...SERVER, isSpeculative: true };
  expect(supportFor(shaped({ minP: 0.1 }), drafting)).toMatchObject({ field: "min_p" });
  expect(supportFor(shaped({ logitBias: [{ token: 1, bias: 1 }] }), drafting)).toMatchObject({
    field: "logit_bias",
  });
});
