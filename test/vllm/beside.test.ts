// The plugin beside a head, on a real engine under vLLM's second model runner: a draft model, which is a weakened copy of the
// bundled one, and an EAGLE-3 head, which has not been trained (bench/lab/heads has one that is). Both are made here.

import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { existsSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { findVllm } from "../../src/tools/up/find-vllm.ts";
import { ensurePlugin } from "../../src/tools/up/install-plugin.ts";
import { TEST_MS_MAX } from "./bed.ts";
import { INTERPRETER, MODEL, ROOT, scripted, TRITON, vllmMissing } from "./fleet.ts";

setDefaultTimeout(TEST_MS_MAX);

interface Counts {
  readonly drafts: number;
  readonly draft_tokens: number;
  readonly accepted_tokens: number;
}

/** Of one head, as the script prints it. */
interface Found {
  /** With siblings; those of the second wave have the very texts of the first. */
  readonly waves: readonly Counts[];
  readonly strangers: Counts;
  /** The head alone, after a fault. */
  readonly alone: Counts;
  readonly faults: Readonly<Record<string, number>>;
}

const SOURCES = join(ROOT, "native", "foretoken_vllm", "src");
const folder = mkdtempSync(join(tmpdir(), "foretoken-heads-"));
afterAll(() => rmSync(folder, { recursive: true }));

const missing = vllmMissing() ?? (existsSync(TRITON) ? null : `there is no ${TRITON}`);
if (missing !== null) console.log(`beside: skipped, ${missing}`);

const rate = ({ drafts, accepted_tokens: accepted }: Counts) => accepted / drafts;

describe.skipIf(missing !== null)("beside a head", () => {
  // The script imports what the plugin needs.
  beforeAll(async () => {
    const { python } = findVllm(process.env.FORETOKEN_VLLM ?? null, ROOT);
    await ensurePlugin({ python, root: ROOT });
  });

  test("the same tokens as without drafts, more of them accepted than of the head alone, and no fault gets out", () => {
    const said = scripted(["beside_cases.py", MODEL, folder], {
      ...INTERPRETER,
      PYTHONPATH: `${SOURCES}:${INTERPRETER.PYTHONPATH}`,
      VLLM_USE_V2_MODEL_RUNNER: "1",
      OMP_NUM_THREADS: "1",
      VLLM_CPU_KVCACHE_SPACE: "1",
    });
    const all: Record<string, Found> = JSON.parse(said.split("\n").at(-1) ?? "");
    expect(Object.keys(all)).toEqual(["draft_model", "eagle3"]);
    for (const [method, { waves, strangers, alone, faults }] of Object.entries(all)) {
      const [first = 0, second = 0] = waves.map(rate);
      const told = { alone: rate(alone), strangers: rate(strangers), first, second };
      console.log(`${method}, accepted draft tokens a step: ${JSON.stringify(told)}`);
      expect(second).toBeGreaterThan(1.1 * rate(alone));
      expect(second).toBeGreaterThan(first);
      expect(rate(strangers)).toBeGreaterThan(rate(alone) - 0.3);
      expect(faults).toEqual({ walk: 1 });
    }
  });
});
