// The plugin beside a draft model, on two real servers under vLLM's second model runner and Triton's interpreter: the suite of the
// plugin. It takes minutes more than the gate has; beside.test.ts holds the tokens of both heads there.

import { afterAll, beforeAll, describe, setDefaultTimeout } from "bun:test";
import { existsSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { assert } from "../../src/core/base/assert.ts";
import { findVllm } from "../../src/tools/up/find-vllm.ts";
import { TEST_MS_MAX } from "./bed.ts";
import { INTERPRETER, MODEL, ROOT, TRITON, vllmMissing } from "./fleet.ts";
import { pluginTests } from "./plugin-cases.ts";

setDefaultTimeout(TEST_MS_MAX);

const folder = mkdtempSync(join(tmpdir(), "foretoken-beside-"));
afterAll(() => rmSync(folder, { recursive: true }));

const missing = vllmMissing() ?? (existsSync(TRITON) ? null : `there is no ${TRITON}`);
if (missing !== null) console.log(`beside: skipped, ${missing}`);

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

  pluginTests({
    number: 2,
    reason: "has Triton here",
    env: INTERPRETER,
    args: ["--max-model-len", "1600", "--", "--max-num-seqs", "8"],
    speculation: { method: "draft_model", model: weak },
    drafts: 3,
    settings: { probability_min: 0.02 },
    groups: 2,
    n: 4,
    tokensMax: 64,
    small: { groups: 2, n: 2, afterTokens: 60 },
    isShort: true,
  });
});
