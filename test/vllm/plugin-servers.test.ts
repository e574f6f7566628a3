// What of the plugin takes minutes more than the gate has, on real servers under vLLM's second model runner and Triton's
// interpreter: all its cases, and what is drawn beside a draft model (beside.test.ts holds the tokens of both heads there).

import { afterAll, beforeAll, describe, setDefaultTimeout } from "bun:test";
import { existsSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { assert } from "../../src/core/base/assert.ts";
import { findVllm } from "../../src/tools/up/find-vllm.ts";
import { TEST_MS_MAX } from "./bed.ts";
import { MODEL, ROOT, TRITON, vllmMissing } from "./fleet.ts";
import { pluginTests, SECOND } from "./plugin-cases.ts";

setDefaultTimeout(TEST_MS_MAX);

const folder = mkdtempSync(join(tmpdir(), "foretoken-beside-"));
afterAll(() => rmSync(folder, { recursive: true }));

const missing = vllmMissing() ?? (existsSync(TRITON) ? null : `there is no ${TRITON}`);
if (missing !== null) console.log(`plugin, runner 2: skipped, ${missing}`);

describe.skipIf(missing !== null)("the plugin under vLLM's second model runner", () => {
  pluginTests(SECOND);
});

describe.skipIf(missing !== null)("servers that stand beside a draft model", () => {
  const weak = join(folder, "weak");
  beforeAll(() => {
    const { python } = findVllm(process.env.FORETOKEN_VLLM ?? null, ROOT);
    const sources = join(ROOT, "native", "foretoken_vllm", "src");
    const widen = [python, "-m", "foretoken_vllm.widen", MODEL, weak, "--hidden", "256"];
    const { exitCode, stderr } = Bun.spawnSync([...widen, "--noise", "0.95"], {
      env: { ...process.env, PYTHONPATH: sources },
    });
    assert(exitCode === 0, stderr.toString());
  });

  const speculation = { method: "draft_model", model: weak };
  pluginTests({ ...SECOND, speculation, drafts: 3, isShort: true });
});
