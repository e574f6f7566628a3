// The benches with vLLM at their smallest, on real servers: their reports, and that all systems did the same work.

import { expect, setDefaultTimeout, test } from "bun:test";
import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { temporaryFolder } from "../suite/temporary-folder.ts";
import { TEST_MS_MAX } from "./bed.ts";
import { INTERPRETER, ROOT, TRITON, vllmMissing } from "./fleet.ts";

setDefaultTimeout(TEST_MS_MAX);

const missing = vllmMissing();
if (missing !== null) console.log(`bench: skipped, ${missing}`);

const report = join(temporaryFolder("bench"), "report.json");

/** The report of a bench, and what it printed. */
function ran(command: readonly string[], env: NodeJS.Dict<string> = {}) {
  const options = { cwd: ROOT, env: { ...process.env, ...env }, timeout: TEST_MS_MAX };
  const { exitCode, stdout, stderr } = Bun.spawnSync([process.execPath, ...command], options);
  expect({ exitCode, log: stderr.toString() }).toMatchObject({ exitCode: 0 });
  return { ...JSON.parse(readFileSync(report, "utf8")), told: stdout.toString() };
}

test.skipIf(missing !== null)(
  "bench:vllm: reports every system with the lengths that plain vLLM made",
  () => {
    const sizes = ["--rounds", "1", "--groups", "2", "--siblings", "3", "--max-tokens", "96"];
    const systems = ["--systems", "plain,least_loaded,foretoken_http", "--chunk-tokens", "32"];
    // It ends with an error if a response is longer or shorter than planned.
    const bench = ["bench/macro/vllm.ts", ...sizes, ...systems, "--account", "--report", report];
    const { systems: found, told } = ran(bench);
    const { plain, least_loaded: least, foretoken_http: http, ...others } = found;
    expect(others).toEqual({});
    for (const { rounds, wall_s, output_tokens } of [plain, least, http]) {
      expect(rounds).toMatchObject([{ wall_s }]);
      expect(output_tokens).toBe(plain.output_tokens);
    }
    expect(plain.computed_again_tokens).toBe(0);
    expect(http.prompt_tokens).toBeGreaterThan(plain.prompt_tokens);
    expect(told).toContain("= speed");
  },
);

// Under Triton's interpreter, so that the servers are those of a GPU but for their kernels and graphs.
test.skipIf(missing !== null || !existsSync(TRITON))(
  "bench:gpu: measures every system, and exact drafts draw what plain vLLM draws",
  () => {
    const sizes = ["--batches", "4", "--max-tokens", "12", "--group", "4", "--out", report];
    const bench = ["scripts/gpu-bench.ts", "--cpu", "--systems", "plain", "exact", ...sizes];
    const { conditions, rows, told } = ran(bench, INTERPRETER);
    expect(conditions).toMatchObject({ device: "cpu", runner: expect.stringMatching(/^runner 2/) });
    const [plain, exact] = rows;
    const usual = { tokens_per_step: 1, accepted: null, host_us: null, of_plain: 1, note: null };
    expect(rows).toMatchObject([usual, { greedy_same: "12/12", same: "8/8", note: null }]);
    // A step of four requests makes up to four tokens, and more with drafts.
    expect(Math.round((plain.ms_per_step * plain.tokens_per_s) / 1000)).toBeWithin(2, 5);
    expect(Math.min(exact.accepted, exact.host_us, exact.tokens_per_step - 1)).toBeGreaterThan(0);
    for (const { system, tokens_per_s, by_wave, of_plain } of rows) {
      expect(of_plain).toBeCloseTo(tokens_per_s / plain.tokens_per_s, 1);
      expect(told).toMatch(new RegExp(`4 . ${system} . ${tokens_per_s}[.0]* . ${by_wave} `));
    }
  },
);
