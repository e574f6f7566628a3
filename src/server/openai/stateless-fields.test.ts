// Which engine fields leave a response divisible, over a stand-in for a vLLM server: by the number of requests that
// one response takes.

import { afterEach, expect, test } from "bun:test";
import { StandInBed, stopBeds } from "../../../test/faults/attacks/stand-in-bed.ts";

afterEach(stopBeds);

test("division: by what an engine keeps from token to token, field by field", async () => {
  const { standIns, http, failures } = await StandInBed.start();
  const bodies = standIns[0]?.bodies ?? [];
  // A byte is a token of the fixture's text.
  const cases: readonly [object, boolean][] = [
    [{}, true],
    [{ bad_words: ["a", "b"] }, true],
    [{ bad_words: ["a", "bc"] }, false],
    [{ bad_words: [" a"] }, false],
    [{ vllm_xargs: { trace: 1 } }, false],
    [{ vllm_xargs: { trace: 1 }, bad_words: ["a"] }, false],
    [{ allowed_token_ids: [1, 2, 3] }, true],
    [{ repetition_penalty: 1.1 }, true],
    [{ logit_bias: { 5: -100 }, min_tokens: 9, top_k: 5, top_p: 0.9, min_p: 0.1 }, true],
    [{ presence_penalty: 0.5 }, false],
    [{ frequency_penalty: 0.5 }, false],
    [{ structured_outputs: { regex: "a+" } }, false],
    [{ repetition_detection: { max_pattern_size: 3, min_count: 3 } }, false],
    [{ thinking_token_budget: 10 }, false],
  ];
  for (const [fields, isDivided] of cases) {
    const before = bodies.length;
    const body = { prompt: [1, 2, 3], max_tokens: 20, ...fields };
    const { status } = await http.ask("/v1/completions", body);
    expect([fields, status]).toEqual([fields, 200]);
    const sent = bodies.slice(before).filter(({ request_id: id }) => /^ft-\d/.test(String(id)));
    expect([fields, sent.length > 1]).toEqual([fields, isDivided]);
  }
  expect(failures).toEqual([]);
}, 180_000);

test("generate: where the reasoning ended reaches the engine with a structure, and is nothing without one", async () => {
  const { standIns, http } = await StandInBed.start();
  const bodies = standIns[0]?.bodies ?? [];
  const sentOf = async (params: object) => {
    const before = bodies.length;
    const body = { token_ids: [1, 2], sampling_params: { max_tokens: 2, ...params } };
    const about = { reasoning_ended: true, reasoning_parser_kwargs: { a: 1 } };
    expect((await http.ask("/inference/v1/generate", { ...body, ...about })).status).toBe(200);
    return bodies.slice(before).find(({ request_id: id }) => /^ft-\d/.test(String(id)));
  };
  expect(await sentOf({ structured_outputs: { regex: "a+" } })).toMatchObject({
    reasoning_ended: true,
    reasoning_parser_kwargs: { a: 1 },
  });
  expect(await sentOf({})).not.toHaveProperty("reasoning_ended");
});
