// The priced model writes what the bundled model writes: the same tokens with the same logprobs.

import { expect, setDefaultTimeout } from "bun:test";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { writePricedGguf } from "../../src/cli/priced-model.ts";
import { linesIn, type ResponseLine } from "../faults/chaos/response-line.ts";
import { engineTest } from "../suite/engine-test.ts";
import { temporaryFolder } from "../suite/temporary-folder.ts";
import { ended, foretoken, PROMPTS, ROOT, start } from "./tool.ts";

setDefaultTimeout(180_000);

const folder = temporaryFolder("e2e");

async function greedy(model: string): Promise<Map<string, ResponseLine>> {
  const out = `${model}.jsonl`;
  const sampling = ["--temperature", "0", "--group-size", "1", "--max-tokens", "128"];
  const run = ["--llama", "1", "--policy", "divided", "--limit", "4", "--quiet", "--out", out];
  const ended = await foretoken("rollout", PROMPTS, "--model", model, ...sampling, ...run);
  expect(ended.status).toBe(0);
  return new Map(linesIn(readFileSync(out, "utf8")).map((line) => [line.group, line]));
}

engineTest("priced model: wider, it draws the same tokens with the same logprobs", async () => {
  const source = join(ROOT, "model", "foretoken-3m-q8_0.gguf");
  const [same, wide] = await Promise.all(
    [1, 4].map(async (factor) => {
      const path = join(folder, `${factor}.gguf`);
      writePricedGguf(source, path, factor);
      return await greedy(path);
    }),
  );
  expect(wide?.size).toBe(4);
  for (const [group, line] of wide ?? []) {
    expect(line.token_ids).toEqual(same?.get(group)?.token_ids ?? []);
    const errors = line.logprobs.map((p, i) => Math.abs(p - (same?.get(group)?.logprobs[i] ?? 9)));
    // Zeros change no sum; the order of the others may differ with the length of a row.
    expect(Math.max(...errors)).toBeLessThan(1e-3);
  }
});

engineTest("demo: its first line is a note, and not in red", async () => {
  const small = ["--limit", "1", "--group-size", "1", "--max-tokens", "2", "--rounds", "1"];
  const run = ["rollout", "--demo", ...small, "--compare", "seer"];
  const { status, stderr } = await ended(start(run, { FORCE_COLOR: "1" }));
  expect(status).toBe(0);
  expect(stderr).toStartWith("the bundled model, widened");
});
