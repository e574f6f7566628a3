// The plugin beside a head, on a real engine under vLLM's second model runner: a draft model, which is a weakened copy of the
// bundled one, and an EAGLE-3 head, which has not been trained (bench/lab/heads has one that is). Both are made here.

import { afterAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { existsSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { TEST_MS_MAX } from "./bed.ts";
import { INTERPRETER, MODEL, ROOT, scripted, TRITON, vllmMissing } from "./fleet.ts";
import { pluginTests } from "./plugin-cases.ts";

setDefaultTimeout(TEST_MS_MAX);

interface Counts {
  readonly drafts: number;
  readonly draft_tokens: number;
  readonly accepted_tokens: number;
}

/** What the script prints. */
interface Found {
  readonly head: Counts;
  readonly waves: readonly Counts[];
  readonly strangers: Counts;
  readonly fault: Counts;
  readonly faults: Readonly<Record<string, number>>;
}

const SOURCES = join(ROOT, "native", "foretoken_vllm", "src");
const folder = mkdtempSync(join(tmpdir(), "foretoken-heads-"));
afterAll(() => rmSync(folder, { recursive: true }));

const missing = vllmMissing() ?? (existsSync(TRITON) ? null : `there is no ${TRITON}`);
if (missing !== null) console.log(`beside: skipped, ${missing}`);

const rate = ({ drafts, accepted_tokens: accepted }: Counts) => accepted / drafts;

describe.skipIf(missing !== null)("beside a head", () => {
  test.each(["draft_model", "eagle3"])(
    "%s: the same tokens as without drafts, more of them accepted than of the head alone, and no fault gets out",
    (method) => {
      const path = `${SOURCES}:${INTERPRETER.PYTHONPATH}`;
      const env = { ...INTERPRETER, PYTHONPATH: path, VLLM_USE_V2_MODEL_RUNNER: "1" };
      const said = scripted(["beside_cases.py", MODEL, method, join(folder, method)], {
        ...env,
        OMP_NUM_THREADS: "1",
        VLLM_CPU_KVCACHE_SPACE: "1",
      });
      const found: Found = JSON.parse(said.split("\n").at(-1) ?? "");
      const [first, second] = found.waves;
      if (first === undefined || second === undefined) throw new Error(said);
      const told = Object.entries({
        head: found.head,
        first,
        second,
        ...{ alone: found.strangers },
      });
      console.log(
        told.map(([name, one]) => `${name}: ${rate(one).toFixed(2)} accepted`).join(", "),
      );
      // The second wave's siblings have written the very texts of the first.
      expect(rate(second)).toBeGreaterThan(rate(found.head) + 1);
      expect(rate(second)).toBeGreaterThan(rate(first));
      // Without siblings, and without a walk.
      expect(rate(found.strangers)).toBeGreaterThan(rate(found.head) - 0.3);
      expect(found.fault).toMatchObject({ accepted_tokens: expect.any(Number) });
      expect(found.faults).toEqual({ walk: 1 });
    },
  );
});

describe.skipIf(missing !== null)("servers that stand beside a draft model", () => {
  pluginTests({
    number: 2,
    reason: "has Triton here",
    env: INTERPRETER,
    args: ["--max-model-len", "1600", "--", "--max-num-seqs", "8"],
    // Made by the first test.
    speculation: { method: "draft_model", model: join(folder, "draft_model") },
    drafts: 3,
    settings: { probability_min: 0.02 },
    groups: 2,
    n: 4,
    tokensMax: 64,
    small: { groups: 2, n: 2, afterTokens: 60 },
    isShort: true,
  });
});
