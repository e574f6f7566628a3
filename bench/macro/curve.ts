// Does training through Foretoken give the same curves as on the same servers directly? TRL's GRPO on the bundled model,
// the weights of every step in both servers, run after run on two vLLM servers with the plugin; the order of the two ways
// alternates from seed to seed. The test, its unit and its margins are in docs/TRAINERS.md, stated before the run.
//
//     npm run bench:curve -- --steps 60 --seeds 3 --out out/curve.json --plot out/curve.svg
//
// Ends with 1 if a run fails. Whether the curves coincide is printed, and in the JSON.

import { mkdirSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { parseArgs } from "node:util";
import { Fleet, ROOT } from "../../test/vllm/fleet.ts";
import { conditions } from "../harness.ts";
import { equivalence } from "./curve/equivalence.ts";
import { type CurveRun, plotOf } from "./curve/plot.ts";
import { meanOf } from "./vllm/statistics.ts";

const REWARD_MARGIN = 0.05;
/** Of the mean length of the direct runs. */
const LENGTH_MARGIN = 0.05;
const ARMS = ["foretoken", "direct"] as const;
type Arm = (typeof ARMS)[number];

const { values } = parseArgs({
  args: process.argv.slice(2),
  options: {
    steps: { type: "string", default: "60" },
    seeds: { type: "string", default: "3" },
    groups: { type: "string", default: "4" },
    "group-size": { type: "string", default: "8" },
    "max-tokens": { type: "string", default: "256" },
    python: { type: "string", default: join(ROOT, ".cache", "grpo", "bin", "python") },
    out: { type: "string", default: join("out", "curve.json") },
    plot: { type: "string", default: join("out", "curve.svg") },
  },
});

function whole(name: "steps" | "seeds" | "groups" | "group-size" | "max-tokens"): number {
  const value = Number(values[name]);
  if (Number.isInteger(value) && value >= 1) return value;
  throw new Error(`--${name} is ${values[name]}, not a whole number above 0`);
}

const sizes = ["steps", "groups", "group-size", "max-tokens"] as const;
const options = sizes.flatMap((name) => [`--${name}`, String(whole(name))]);
const seeds = whole("seeds");

async function train(servers: readonly string[], seed: number): Promise<CurveRun> {
  const script = join(import.meta.dir, "curve", "train.py");
  const command = [
    values.python,
    script,
    "--servers",
    ...servers,
    "--seed",
    String(seed),
    ...options,
  ];
  const stub = join(ROOT, "examples", "grpo");
  const child = Bun.spawn(command, {
    env: { ...process.env, PYTHONPATH: stub, CUDA_VISIBLE_DEVICES: "" },
    stdin: "ignore",
    stdout: "pipe",
    stderr: "pipe",
  });
  const [stdout, stderr, status] = await Promise.all([
    new Response(child.stdout).text(),
    new Response(child.stderr).text(),
    child.exited,
  ]);
  if (status !== 0) throw new Error(`${script} ended with ${status}: ${stderr.slice(-2000)}`);
  return JSON.parse(stdout.trim().split("\n").at(-1) ?? "");
}

/** Both engines hold the bundled weights again, also if they were changed behind the sidecar. */
async function reset(fleet: Fleet): Promise<void> {
  const kwargs = { weights_path: join(ROOT, "model", "hf") };
  const answer = await fleet.call("POST", "/collective_rpc", { method: "reload_weights", kwargs });
  if (!answer.ok) throw new Error(`${answer.status}: ${await answer.text()}`);
}

/** Reports after each pair of runs, so that one that is cut off leaves what it has. */
async function runs(fleet: Fleet): Promise<void> {
  const made: Record<Arm, CurveRun[]> = { foretoken: [], direct: [] };
  for (let seed = 0; seed < seeds; seed += 1) {
    for (const arm of seed % 2 === 0 ? ARMS : ARMS.toReversed()) {
      await reset(fleet);
      const servers = arm === "foretoken" ? [fleet.url] : fleet.servers.map(({ url }) => url);
      const run = await train(servers, seed);
      made[arm].push(run);
      const figures = [meanOf(run.reward), meanOf(run.length), meanOf(run.generation_s)];
      const [reward, length, seconds] = figures.map((value) => value.toFixed(3));
      console.log(
        `seed ${seed} ${arm}: reward ${reward}, length ${length}, generation ${seconds} s`,
      );
    }
    report(made);
  }
}

function report(arms: Record<Arm, CurveRun[]>): void {
  const of = (arm: Arm, pick: (run: CurveRun) => readonly number[]) => arms[arm].map(pick);
  const lengths = of("direct", ({ length }) => length);
  const tests = {
    reward: equivalence(
      of("direct", ({ reward }) => reward),
      of("foretoken", ({ reward }) => reward),
      REWARD_MARGIN,
    ),
    length: equivalence(
      lengths,
      of("foretoken", ({ length }) => length),
      LENGTH_MARGIN * meanOf(lengths.flat()),
    ),
  };
  const coincide = tests.reward.isEquivalent && tests.length.isEquivalent;
  console.log(JSON.stringify({ pairs: lengths.length, coincide, ...tests }, null, 2));
  const result = { conditions: conditions(), options: values, coincide, tests, arms };
  written(values.out, `${JSON.stringify(result, null, 2)}\n`);
  written(values.plot, plotOf(arms));
}

function written(path: string, text: string): void {
  mkdirSync(dirname(path), { recursive: true });
  writeFileSync(path, text);
}

const fleet = await Fleet.up(["--plugin", "--max-model-len", "2100"]);
try {
  await runs(fleet);
} finally {
  await fleet.stop();
}
