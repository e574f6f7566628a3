// The priced model writes what the bundled model writes: same tokens, logprobs within float error.

import { expect, test } from "bun:test";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { writePricedModel } from "../../scripts/model-priced.ts";
import { temporaryFolder } from "../suite/temporary-folder.ts";
import { engineMissing, foretoken, PROMPTS, ROOT } from "./tool.ts";

const folder = temporaryFolder("e2e");

interface Line {
  readonly group: string;
  readonly token_ids: readonly number[];
  readonly logprobs: readonly number[];
}

async function greedy(model: string): Promise<Map<string, Line>> {
  const out = join(folder, "responses.jsonl");
  const sampling = ["--temperature", "0", "--group-size", "1", "--max-tokens", "128"];
  const run = ["--workers", "1", "--policy", "divided", "--limit", "4", "--quiet", "--out", out];
  const ended = await foretoken("rollout", PROMPTS, "--model", model, ...sampling, ...run);
  expect(ended.status).toBe(0);
  const lines = readFileSync(out, "utf8").trim().split("\n");
  return new Map(lines.map((text) => JSON.parse(text) as Line).map((line) => [line.group, line]));
}

test.skipIf(engineMissing() !== null)(
  "model:priced: wider and deeper, it draws the same tokens with the same logprobs",
  async () => {
    const priced = writePricedModel({ factor: 4, layers: 6, out: join(folder, "priced") });
    const small = await greedy(join(ROOT, "model", "foretoken-3m-f16.gguf"));
    const wide = await greedy(priced.gguf);
    expect(wide.size).toBe(4);
    const errors: number[] = [];
    for (const [group, line] of wide) {
      const same = small.get(group);
      expect(line.token_ids).toEqual(same?.token_ids ?? []);
      errors.push(...line.logprobs.map((p, i) => Math.abs(p - (same?.logprobs[i] ?? 0))));
    }
    // libllama rounds activations to f16, and sums in another order: single logprobs differ by up to some hundredths.
    expect(Math.max(...errors)).toBeLessThan(0.05);
    expect(errors.reduce((sum, error) => sum + error, 0) / errors.length).toBeLessThan(2e-3);
  },
  120_000,
);

test("model:priced: a factor that is no power of four, or fewer layers, is refused by name", () => {
  const out = join(folder, "none");
  expect(() => writePricedModel({ factor: 2, layers: 4, out })).toThrow("--factor is 2");
  expect(() => writePricedModel({ factor: 4, layers: 3, out })).toThrow("--layers is 3");
});
