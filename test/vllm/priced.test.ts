// The priced model on real vLLM: a server with the bundled model and one with the same model widened by four draw the
// same tokens at temperature 0, with the same logprobs but for the rounding of float32.

import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { writePricedModel } from "../../scripts/model-priced.ts";
import type { Made } from "../../src/tools/doctor/engine.ts";
import { TEST_MS_MAX } from "./bed.ts";
import { Fleet, MODEL, promptIds, vllmMissing } from "./fleet.ts";

setDefaultTimeout(TEST_MS_MAX);

const PROMPTS = 3;
const TOKENS = 64;
/** Nats. Sums of float32 in another order; 1e-5 was seen. */
const LOGPROB_ERROR_MAX = 1e-4;

const missing = vllmMissing();
if (missing !== null) console.log(`priced: skipped, ${missing}`);

describe.skipIf(missing !== null)("vLLM with the bundled model and with the priced one", () => {
  const startMs = performance.now();
  const folder = mkdtempSync(join(tmpdir(), "foretoken-priced-"));
  const fleets: Fleet[] = [];

  beforeAll(async () => {
    const priced = writePricedModel({ factor: 4, layers: 4, out: folder });
    const up = (model: string) =>
      Fleet.up(["--model", model, "--workers", "1", "--", "--dtype", "float32"]);
    fleets.push(...(await Promise.all([up(MODEL), up(priced.folder)])));
    console.log(`priced: healthy after ${Math.round((performance.now() - startMs) / 1000)} s`);
  });

  afterAll(async () => {
    await Promise.all(fleets.map((fleet) => fleet.stop()));
    rmSync(folder, { recursive: true, force: true });
    console.log(`priced: ${Math.round((performance.now() - startMs) / 1000)} s`);
  });

  test("model:priced: the same greedy tokens, and logprobs within float error", async () => {
    const [small, wide] = fleets;
    if (small === undefined || wide === undefined) throw new Error("the servers did not start");
    const prompts = await promptIds(small, PROMPTS);
    const greedy = async (fleet: Fleet, tokens: readonly number[]): Promise<Made> => {
      const engine = fleet.plain(0);
      engine.model = null;
      const outcome = await engine.generate({ tokens, maxTokens: TOKENS, temperature: 0 });
      if (outcome.kind === "refused") throw new Error(outcome.message);
      return outcome.made;
    };
    const errors: number[] = [];
    for (const prompt of prompts) {
      const [one, other] = await Promise.all([greedy(small, prompt), greedy(wide, prompt)]);
      expect(other.tokens).toEqual(one.tokens);
      expect(one.tokens.length).toBe(TOKENS);
      errors.push(...one.logprobs.map((p, i) => Math.abs(p - (other.logprobs[i] ?? Number.NaN))));
    }
    console.log(`priced: logprobs differ by ${Math.max(...errors).toExponential(1)} at most`);
    expect(Math.max(...errors)).toBeLessThan(LOGPROB_ERROR_MAX);
  });
});
