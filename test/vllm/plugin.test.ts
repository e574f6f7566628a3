// Two real vLLM servers that draft by the plugin, as `foretoken up --plugin` starts them: all cases under vLLM's first model
// runner, and what is drawn under its second (plugin-servers.test.ts has the other cases). The second needs no GPU here:
// Triton's interpreter runs its kernels (interpreter/), and asynchronous scheduling is on.

import { describe, expect, setDefaultTimeout, test } from "bun:test";
import { existsSync } from "node:fs";
import { join } from "node:path";
import { TEST_MS_MAX } from "./bed.ts";
import { INTERPRETER, PYTHON, ROOT, scripted, TRITON, vllmMissing } from "./fleet.ts";
import { pluginTests, type Runner, SECOND } from "./plugin-cases.ts";

setDefaultTimeout(TEST_MS_MAX);

const TWINS = join(ROOT, "native", "foretoken_vllm", "tests");

const FIRST: Runner = {
  number: 1,
  reason: "has no Triton here",
  env: { PYTHONPATH: PYTHON },
  args: ["--max-model-len", "2100", "--"],
  speculation: { method: "custom_class", model: "steered.ForetokenProposer" },
  drafts: 8,
  settings: {},
  groups: 16,
  n: 6,
  tokensMax: 256,
  small: { groups: 8, n: 4, afterTokens: 1500 },
};

const missing = vllmMissing();
const tritonMissing =
  missing ?? (existsSync(TRITON) ? null : `there is no ${TRITON}: npm run vllm:install`);
if (tritonMissing !== null) console.log(`plugin: skipped in whole or part, ${tritonMissing}`);

describe.skipIf(missing !== null)("the plugin under vLLM's first model runner", () => {
  pluginTests(FIRST);
});

describe.skipIf(tritonMissing !== null)("the plugin under vLLM's second model runner", () => {
  pluginTests({ ...SECOND, isShort: true });

  test("the kernel drafts what the core drafts, nothing from another request's table, and no fault gets out", () => {
    const { cases, drafted } = JSON.parse(
      scripted(["walk_cases.py"], {
        ...INTERPRETER,
        PYTHONPATH: `${INTERPRETER.PYTHONPATH}:${TWINS}`,
      }),
    );
    expect(cases).toBeGreaterThan(100);
    expect(drafted).toBeGreaterThan(500);
  });

  test("what a rollout's requests run is compiled before the first of them", () => {
    const path = `${join(ROOT, "native", "foretoken_vllm", "src")}:${INTERPRETER.PYTHONPATH}`;
    const env = { ...INTERPRETER, PYTHONPATH: path, VLLM_USE_V2_MODEL_RUNNER: "1" };
    const said = scripted(["warm_cases.py", join(ROOT, "model", "hf")], env);
    const { cold, cold_alone, left, left_alone, drafted, faults } = JSON.parse(
      said.split("\n").at(-1) ?? "",
    );
    expect({ cold, left, faults }).toEqual({ cold: [], left: 0, faults: {} });
    expect(drafted).toBeGreaterThan(100);
    // vLLM's own warm-up leaves these to the first requests, and steps without an output.
    expect(left_alone).toBeGreaterThan(0);
    expect(cold_alone).toEqual(
      expect.arrayContaining(["_rejection_kernel", "_resample_kernel", "_topk_log_softmax_kernel"]),
    );
  });

  test("the kernel compiles for a GPU", () => {
    const said = scripted(["walk_compiles.py"], { ...INTERPRETER, TRITON_INTERPRET: undefined });
    const made = said.replaceAll(/: \d+ characters of PTX/g, "");
    expect(made.split("\n")).toEqual(["*i32", "*i64", "*i64, a head"]);
  });
});
