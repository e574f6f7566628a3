// What history adds on real engines: the steps of a GRPO run (examples/grpo/train.py with --record and --keep) are made again, each
// with the weights that it had, by a sidecar that keeps a history and by one that keeps none. Both are up at the same time, each
// with an engine of its own, and take turns, so that other work on the machine meets both.
//
//   bun bench/macro/history-live.ts TRACE WEIGHTS [--engine vllm|llama] [--steps N] [--seconds S] [--max-tokens 200]
//       [--json FILE]
//
// vllm: a server with the plugin. llama: an embedded engine.

import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { parseArgs } from "node:util";
import Table from "cli-table3";
import { readGroups } from "../../src/cli/replay-files.ts";
import type { TraceGroup } from "../../src/tools/replay/trace.ts";
import { conditions } from "../harness.ts";
import { byPolicy } from "./history.ts";
import { ENGINES, type Side } from "./history-engines.ts";

interface Arm {
  readonly name: string;
  readonly side: Side;
  readonly steps: Step[];
}

/** What one step of the trainer took. */
interface Step {
  readonly wallMs: number;
  /** After nine tenths of the responses had ended. */
  readonly tailMs: number;
  readonly tokens: number;
  readonly drafted: number;
  readonly accepted: number;
  readonly engineSteps: number;
}

const HISTORY_MB = { "no history": 0, history: 64 };
const TAIL_PART = 0.9;

async function run(
  { side, steps }: Arm,
  groups: readonly TraceGroup[],
  maxTokens: number,
): Promise<Step> {
  const endsMs: number[] = [];
  let tokens = 0;
  const beganMs = performance.now();
  await Promise.all(
    groups.flatMap(({ prompt, responses }) =>
      responses.map(async () => {
        const made = await side.complete([...prompt], maxTokens);
        tokens += made;
        endsMs.push(performance.now() - beganMs);
      }),
    ),
  );
  const after = await side.drafts();
  const earlier = (value: (step: Step) => number) =>
    steps.reduce((sum, step) => sum + value(step), 0);
  const wallMs = endsMs.at(-1) ?? 0;
  const tailMs = wallMs - (endsMs[Math.ceil(endsMs.length * TAIL_PART) - 1] ?? 0);
  const drafted = after.drafted - earlier((step) => step.drafted);
  const accepted = after.accepted - earlier((step) => step.accepted);
  const engineSteps = after.engineSteps - earlier((step) => step.engineSteps);
  return { wallMs, tailMs, tokens, drafted, accepted, engineSteps };
}

/** Mean of logarithms of `value` with over without, and its 95 % interval, as ratios. */
function ratioOf(
  pairs: readonly (readonly [Step, Step])[],
  value: (step: Step) => number,
): readonly [number, number, number] {
  const logs = pairs
    .map(([without, with_]) => Math.log(value(with_) / value(without)))
    .filter(Number.isFinite);
  const mean = logs.reduce((sum, log) => sum + log, 0) / logs.length;
  const variance = logs.reduce((sum, log) => sum + (log - mean) ** 2, 0) / (logs.length - 1);
  const half = 1.96 * Math.sqrt(variance / logs.length);
  return [Math.exp(mean), Math.exp(mean - half), Math.exp(mean + half)];
}

function tableOf(without: Arm, with_: Arm, known: readonly boolean[]): string {
  const all = without.steps.map((step, i) => [step, with_.steps[i] ?? step] as const);
  const pairs = all.filter((_, i) => known[i]);
  const sum = (at: 0 | 1, value: (step: Step) => number) =>
    pairs.reduce((total, pair) => total + value(pair[at]), 0);
  const values: readonly [string, (step: Step) => number][] = [
    ["wall, ms", ({ wallMs }) => wallMs],
    ["wall a token, ms", ({ wallMs, tokens }) => wallMs / tokens],
    ["tail, ms", ({ tailMs }) => tailMs],
    ["engine steps", ({ engineSteps }) => engineSteps],
    ["tokens a step of the engine", ({ engineSteps, tokens }) => tokens / engineSteps],
    ["accepted tokens, part of all", ({ accepted, tokens }) => accepted / tokens],
    ["accepted, part of drafted", ({ accepted, drafted }) => accepted / drafted],
  ];
  const table = new Table({
    head: [`${pairs.length} steps`, without.name, with_.name, "with / without", "95 %"],
    style: { head: [], border: [] },
  });
  for (const [name, value] of values) {
    const [ratio, low, high] = ratioOf(pairs, value);
    const means = ([0, 1] as const).map((at) => (sum(at, value) / pairs.length).toFixed(3));
    table.push([name, ...means, ratio.toFixed(3), `${low.toFixed(3)} - ${high.toFixed(3)}`]);
  }
  return table.toString();
}

async function main(): Promise<void> {
  const { values, positionals } = parseArgs({
    allowPositionals: true,
    options: {
      engine: { type: "string", default: "vllm" },
      steps: { type: "string", default: "1000" },
      seconds: { type: "string", default: "3600" },
      "max-tokens": { type: "string", default: "200" },
      json: { type: "string" },
    },
  });
  const [trace, weights] = positionals;
  if (trace === undefined || weights === undefined) throw new Error("name a trace and its weights");
  const groups: TraceGroup[] = [];
  for await (const group of readGroups(trace)) groups.push(group);
  const steps = byPolicy(groups).slice(0, Number(values.steps));
  if (values.engine !== "vllm" && values.engine !== "llama") {
    throw new Error(`--engine is ${values.engine}; it is vllm or llama`);
  }
  const open = ENGINES[values.engine];
  const arms: Arm[] = await Promise.all(
    Object.entries(HISTORY_MB).map(async ([name, mb]) => ({
      name,
      side: await open(mb),
      steps: [],
    })),
  );
  const endMs = performance.now() + 1000 * Number(values.seconds);
  const seen = new Set<string>();
  const known: boolean[] = [];
  try {
    for (const [i, step] of steps.entries()) {
      if (performance.now() > endMs) break;
      known.push(step.every(({ prompt }) => seen.has(prompt.join())));
      for (const { prompt } of step) seen.add(prompt.join());
      const name = step[0]?.name.split("/")[0] ?? "";
      for (const arm of i % 2 === 0 ? arms : arms.toReversed()) {
        await arm.side.load(join(weights, `${name}.safetensors`));
        arm.steps.push(await run(arm, step, Number(values["max-tokens"])));
      }
      console.error(`${name}: ${arms.map((arm) => JSON.stringify(arm.steps.at(-1))).join(" ")}`);
    }
  } finally {
    await Promise.all(arms.map(({ side }) => side.stop()));
  }
  const [without, with_] = arms;
  if (without === undefined || with_ === undefined) throw new Error("there are two arms");
  console.log("steps whose prompts had occurred before:");
  console.log(tableOf(without, with_, known));
  if (values.json !== undefined) {
    const results = arms.map(({ name, steps: of }) => ({ name, steps: of }));
    writeFileSync(values.json, `${JSON.stringify({ conditions: conditions(), known, results })}\n`);
  }
}

if (import.meta.main) await main();
