// The plugin's `exact` on vLLM's first model runner: keyed noise on vLLM's own samplers, without a server.

import { describe, expect, test } from "bun:test";
import { join } from "node:path";
import { findVllm } from "../../src/tools/up/find-vllm.ts";
import { ROOT, vllmMissing } from "./fleet.ts";

const missing = vllmMissing();
if (missing !== null) console.log(`exact: skipped, ${missing}`);

describe.skipIf(missing !== null)("exact on vLLM's first model runner", () => {
  test("vLLM's samplers draw the same tokens drafted or not, from the model's distribution; no fault gets out", () => {
    const { python } = findVllm(process.env.FORETOKEN_VLLM ?? null, ROOT);
    const { exitCode, stdout, stderr } = Bun.spawnSync(
      [python, join(import.meta.dir, "python", "keyed_cases.py")],
      { env: { ...process.env, VLLM_LOGGING_LEVEL: "ERROR" } },
    );
    if (exitCode !== 0) throw new Error(stderr.toString());
    expect(JSON.parse(stdout.toString().trim().split("\n").at(-1) ?? "")).toMatchObject({
      tokens: 200,
      accepted: expect.any(Number),
    });
  });
});
