// The priced model on real vLLM: a server with the bundled model and one with the same model widened by four and deepened
// draw the same tokens at temperature 0, with the same logprobs but for the rounding of float32.

import { expect, setDefaultTimeout, test } from "bun:test";
import { writePricedModel } from "../../scripts/model-priced.ts";
import type { Made } from "../../src/engines/vllm/trial.ts";
import { temporaryFolder } from "../suite/temporary-folder.ts";
import { TEST_MS_MAX } from "./bed.ts";
import { Fleet, MODEL, promptIds, vllmMissing } from "./fleet.ts";

setDefaultTimeout(TEST_MS_MAX);

const PROMPTS = 3;
const TOKENS = 64;
/** Nats. Sums of float32 in another order; 1e-5 was seen. */
const LOGPROB_ERROR_MAX = 1e-4;

const folder = temporaryFolder("priced");
const missing = vllmMissing();
if (missing !== null) console.log(`priced: skipped, ${missing}`);

async function greedy(fleet: Fleet, tokens: readonly number[]): Promise<Made> {
  const engine = fleet.plain(0);
  const outcome = await engine.generate({ tokens, maxTokens: TOKENS, temperature: 0 });
  if (outcome.kind !== "made") throw new Error(outcome.message);
  return outcome;
}

test.skipIf(missing !== null)(
  "model:priced: the same greedy tokens, and logprobs within float error",
  async () => {
    const priced = writePricedModel({ hidden: 1024, layers: 5, out: folder });
    const up = (model: string) =>
      Fleet.up(["--model", model, "--workers", "1", "--", "--dtype", "float32"]);
    const [small, wide] = await Promise.all([up(MODEL), up(priced)]);
    try {
      const errors: number[] = [];
      for (const prompt of await promptIds(small, PROMPTS)) {
        const [one, other] = await Promise.all([greedy(small, prompt), greedy(wide, prompt)]);
        expect(other.tokens).toEqual(one.tokens);
        expect(one.tokens.length).toBe(TOKENS);
        errors.push(...one.logprobs.map((p, i) => Math.abs(p - (other.logprobs[i] ?? Number.NaN))));
      }
      console.log(`priced: logprobs differ by ${Math.max(...errors).toExponential(1)} at most`);
      expect(Math.max(...errors)).toBeLessThan(LOGPROB_ERROR_MAX);
    } finally {
      await Promise.all([small.stop(), wide.stop()]);
    }
  },
);
