// A real trainer through the sidecar: TRL's GRPOTrainer, the bundled model, every step's weights in both engines.
// Needs Python packages: `npm run grpo:install` prints the Python to name in FORETOKEN_GRPO_PYTHON.

import { expect, setDefaultTimeout, test } from "bun:test";
import { join } from "node:path";
import { ToolProcess } from "../faults/process.ts";
import { temporaryFolder } from "../suite/temporary-folder.ts";
import { engineMissing, ROOT } from "./tool.ts";

setDefaultTimeout(300_000);

const python = process.env.FORETOKEN_GRPO_PYTHON ?? "";
const missing =
  python === "" ? "FORETOKEN_GRPO_PYTHON names no Python with its packages" : engineMissing();
const testIf = missing === null ? test : test.skip;
const because = missing === null ? "" : ` (skipped: ${missing})`;

const folder = temporaryFolder("e2e");

const STEPS = 10;
const SESSION_STEPS = 3;
const GROUPS = 2;
const GROUP_SIZE = 4;

/** Summary of a run of examples/grpo/train.py, and the server's metrics after it. */
async function trained(...more: string[]) {
  const model = join(ROOT, "model", "foretoken-3m-f16.gguf");
  const options = ["--llama", "2", "--chunk-tokens", "32", "--model", model, "--log", "json"];
  const server = await ToolProcess.serving(...options);
  try {
    const { url } = server;
    const sizes = ["--groups", `${GROUPS}`, "--group-size", `${GROUP_SIZE}`, "--max-tokens", "96"];
    const trainer = Bun.spawn(
      [
        python,
        join(ROOT, "examples", "grpo", "train.py"),
        ...["--server", url.replace(/\/$/, ""), "--out", folder],
        ...sizes,
        ...more,
      ],
      { stdout: "pipe", stderr: "pipe", env: { ...process.env, CUDA_VISIBLE_DEVICES: "" } },
    );
    const [stdout, stderr, status] = await Promise.all([
      new Response(trainer.stdout).text(),
      new Response(trainer.stderr).text(),
      trainer.exited,
    ]);
    expect({ status, stderr: status === 0 ? "" : stderr.slice(-2000) }).toEqual({
      status: 0,
      stderr: "",
    });
    const summary = JSON.parse(stdout.trim().split("\n").at(-1) ?? "");
    return { summary, metrics: await (await fetch(new URL("/metrics", url))).text() };
  } finally {
    server.signal("SIGTERM");
    await server.exited;
  }
}

testIf(
  `grpo: ten steps of TRL through two engines, every response with the newest weights${because}`,
  async () => {
    const { summary, metrics } = await trained("--steps", `${STEPS}`);
    expect(summary.steps).toBe(STEPS);
    expect(summary.responses).toBe(STEPS * GROUPS * GROUP_SIZE);
    expect(summary.weight_updates).toBe(STEPS);
    expect(summary.rewards).toHaveLength(STEPS);
    expect(metrics).toMatch(new RegExp(`foretoken_weight_epoch\\{[^}]*\\} ${STEPS}\\n`));
    expect(metrics).toMatch(/foretoken_workers\{state="ready"[^}]*\} 2\n/);
  },
);

testIf(
  `grpo: three steps on sessions of two turns, each a whole trajectory of one sequence${because}`,
  async () => {
    const { summary, metrics } = await trained("--steps", `${SESSION_STEPS}`, "--sessions");
    expect(summary.steps).toBe(SESSION_STEPS);
    expect(summary.weight_updates).toBe(SESSION_STEPS);
    expect(summary.rewards).toHaveLength(SESSION_STEPS);
    const later = SESSION_STEPS * GROUPS * GROUP_SIZE;
    const turns = /foretoken_session_turns_total\{[^}]*\} (\d+)\n/.exec(metrics)?.[1];
    expect(Number(turns)).toBe(later);
  },
);
