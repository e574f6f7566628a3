// What a client is told of an engine's own answers, over stand-ins for vLLM servers: refusals, and what a prefix cache had.
// Responses under faults of engines are held by engines/vllm/rollout.test.ts, whole sidecars by test/faults/simulated.

import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { StandInBed, stopBeds } from "../faults/attacks/stand-in-bed.ts";

setDefaultTimeout(240_000);

describe("an engine's 4xx", () => {
  /** The sidecar's vocabulary has one token more than the engine's. */
  const REFUSED = 1000;
  const MESSAGE = "Token id 1000 is out of vocabulary";
  const params = { max_tokens: 4 };
  let bed: StandInBed;

  beforeAll(async () => {
    bed = await StandInBed.start();
  });

  afterAll(stopBeds);

  test("refused: the client gets the engine's message, and the server continues", async () => {
    const body = { token_ids: [1, REFUSED], sampling_params: { ...params, n: 3 } };
    const answer = await bed.post("/inference/v1/generate", body);
    expect(answer.status).toBe(400);
    expect(await answer.json()).toEqual({
      error: { message: MESSAGE, type: "BadRequestError", param: null, code: 400 },
    });
    expect(bed.sidecar.sidecar.rollout.unfinished).toBe(0);
    const good = { token_ids: [1, 2], sampling_params: params };
    expect((await bed.post("/inference/v1/generate", good)).status).toBe(200);
  });

  test("usage: tells how much of the prompt the engine had in its cache", async () => {
    const prompt = Array.from({ length: 40 }, (_, i) => i);
    const details = async (path: string, body: object) => {
      const answer = (await (await bed.post(path, body)).json()) as {
        usage: Record<string, unknown>;
      };
      return answer.usage.prompt_tokens_details;
    };
    const first = { token_ids: prompt, sampling_params: params };
    expect(await details("/inference/v1/generate", first)).toEqual({ cached_tokens: 0 });
    // Whole blocks of 16 tokens.
    const again = { prompt, max_tokens: 4, n: 2 };
    expect(await details("/v1/completions", again)).toEqual({ cached_tokens: 32 });
  });

  test("refused: a stream ends with the engine's words, without [DONE]", async () => {
    const body = { token_ids: [2, REFUSED], sampling_params: params, stream: true };
    const text = await (await bed.post("/inference/v1/generate", body)).text();
    const { error } = JSON.parse(text.slice("data: ".length)) as { error: { message: string } };
    expect(error.message).toBe(MESSAGE);
  });

  test("refused: a rollout's line has the reason; its other groups continue", async () => {
    const groups = [
      { id: "good", token_ids: [3, 4] },
      { id: "bad", token_ids: [3, REFUSED] },
    ];
    const text = await (await bed.post("/v1/rollouts", { groups, sampling_params: params })).text();
    const lines = text.trim().split("\n").slice(0, -1);
    const told = lines.map((line) => {
      const { group, finish_reason: reason, error } = JSON.parse(line);
      return [group, reason, error?.message ?? null];
    });
    expect(told.toSorted()).toEqual([
      ["bad", "abort", MESSAGE],
      ["good", "length", null],
    ]);
  });
});
