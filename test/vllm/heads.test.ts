// The scripts at their smallest, with the Python of vLLM's environment: that a weakened copy is right less often than the
// model itself, and that a head learns, and is written as vLLM reads it.

import { expect, setDefaultTimeout, test } from "bun:test";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { findVllm } from "../../src/tools/up/find-vllm.ts";
import { temporaryFolder } from "../suite/temporary-folder.ts";
import { MODEL, ROOT, vllmMissing } from "./fleet.ts";

setDefaultTimeout(180_000);

const HEADS = join(ROOT, "bench", "lab", "heads");
const missing = vllmMissing();
const folder = temporaryFolder("heads");

/** What a script prints. */
function ran(...command: readonly string[]): string {
  const { python } = findVllm(process.env.FORETOKEN_VLLM ?? null, ROOT);
  const sources = join(ROOT, "native", "foretoken_vllm", "src");
  const env = { ...process.env, PYTHONPATH: sources, OMP_NUM_THREADS: "1" };
  const { exitCode, stdout, stderr } = Bun.spawnSync([python, ...command], { env });
  expect({ exitCode, log: stderr.toString() }).toMatchObject({ exitCode: 0 });
  return stdout.toString();
}

/** Tokens a step, of the line that a script ends with. */
function tokensOf(said: string): number {
  return Number(/; ([\d.]+) tokens a step of 7 drafts\s*$/.exec(said)?.[1]);
}

test.skipIf(missing !== null)("heads: noise makes a copy that is right less often", () => {
  const weak = join(folder, "weak");
  ran("-m", "foretoken_vllm.widen", MODEL, weak, "--hidden", "256", "--noise", "0.95");
  const tokens = [MODEL, weak].map((draft) =>
    tokensOf(ran(join(HEADS, "acceptance.py"), draft, "--responses", "4")),
  );
  expect(tokens[0]).toBeGreaterThan(6);
  expect(tokens[1]).toBeWithin(1.5, 4);
});

test.skipIf(missing !== null)("heads: a head learns, and is written for vLLM", () => {
  const head = join(folder, "head");
  const sizes = ["--prompts", "16", "--tokens", "64", "--judged", "8"];
  const said = ran(join(HEADS, "train.py"), head, ...sizes, "--epochs", "8");
  const losses = [...said.matchAll(/loss ([\d.]+)/g)].map(([, loss]) => Number(loss));
  expect(losses.at(-1)).toBeLessThan(0.8 * (losses[0] ?? 0));
  expect(tokensOf(said)).toBeGreaterThan(1);
  const config = JSON.parse(readFileSync(join(head, "config.json"), "utf8"));
  expect(config).toMatchObject({ architectures: ["Eagle3Qwen3ForCausalLM"], num_hidden_layers: 1 });
});
