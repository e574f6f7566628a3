// Agents' sessions of many turns on two real vLLM servers, in a closed loop, by Foretoken and by routers that keep a
// session's requests together, interleaved in rounds of one run.
//
//   npm run bench:agents -- --help
//
// --simulate: on so many modelled servers in virtual time, as many sessions for each as for a real one (agents/modelled.ts).
// The model is the bundled one widened (npm run model:priced); every text is drawn from a seed, and the same for all
// systems (vllm/vllm_bench.py). vllm-router 0.1.17 is installed in the project's cache.

import { readFileSync } from "node:fs";
import { join } from "node:path";
import { parseArgs } from "node:util";
import Table from "cli-table3";
import { median } from "../../src/cli/rounds.ts";
import { findVllm } from "../../src/tools/up/find-vllm.ts";
import { ensurePlugin } from "../../src/tools/up/install-plugin.ts";
import { ROOT, vllmMissing } from "../../test/vllm/fleet.ts";
import { SEED, writeReport } from "../harness.ts";
import { type AgentsRun, iterationOf } from "./agents/drive.ts";
import { HOSTS } from "./agents/hosts.ts";
import { MODELLED, simulated } from "./agents/simulate.ts";
import { AGENT_SYSTEMS, type AgentSystem, setOf } from "./agents/systems.ts";
import { CONTEXT_TOKENS, SHAPES, tasksOf, type WorkloadName } from "./agents/workload.ts";
import { separate } from "./vllm/neighbour.ts";
import { readSettings, systemsOf } from "./vllm/settings.ts";
import { Servers } from "./vllm/systems.ts";

const FIGURES = {
  iteration_s: "iteration s",
  trajectory_p50_s: "trajectory p50 s",
  trajectory_p99_s: "trajectory p99 s",
  tail_s: "tail s",
  prompt_tokens: "prompt tokens",
  prompt_tokens_computed: "  of these computed",
  steps: "steps",
  preempted: "preempted",
  amd_s: "steps, s on AMD",
  amx_s: "steps, s with AMX",
  xeon_s: "steps, s on a Xeon",
  proxy_cpu_s: "CPU s, proxy",
  api_cpu_s: "CPU s, servers' API",
} as const satisfies Record<keyof AgentsRun, string>;

const HELP = `npm run bench:agents -- [options]

--workload NAME      ${Object.keys(SHAPES).join(", ")}; default single
--kv-blocks N        KV of each server in blocks of 32 tokens; default 256, short: 96
--tasks N            tasks of 8 or 16 sessions each; default: 32 sessions for two servers
--rounds N           rounds that count, after one that warms up; default 3
--systems a,b        of ${AGENT_SYSTEMS.join(", ")}; default all
--simulate ENGINES   in place of --systems: ${MODELLED.join(", ")} on so many modelled servers
--host NAME          whose step times these have: ${HOSTS.join(", ")}; default amd
--json FILE          all figures, written after each round
`;

type Runs = ReadonlyMap<string, readonly AgentsRun[]>;

function medianOf(runs: readonly AgentsRun[], figure: keyof AgentsRun): number {
  return median(runs.map((run) => run[figure]));
}

function tableOf(runs: Runs): string {
  const table = new Table({
    head: ["", ...runs.keys()],
    style: { head: [], border: [] },
    colAligns: ["left", ...Array.from(runs, () => "right" as const)],
  });
  for (const [figure, title] of Object.entries(FIGURES) as [keyof AgentsRun, string][]) {
    const cells = [...runs.values()].map((of) =>
      medianOf(of, figure).toFixed(figure.endsWith("_s") ? 1 : 0),
    );
    table.push([title, ...cells]);
  }
  const hits = [...runs.values()].map((of) => {
    const part = medianOf(of, "prompt_tokens_computed") / medianOf(of, "prompt_tokens");
    return `${(100 * (1 - part)).toFixed(0)} %`;
  });
  table.push(["prefix hits", ...hits]);
  return table.toString();
}

/** How many times as long the fastest of the others takes, by medians of rounds: of the router's modes if they ran. */
function ratiosOf(runs: Runs): Record<string, number> {
  const secondsOf = (of: readonly AgentsRun[]): number => medianOf(of, "iteration_s");
  const others = [...runs].filter(([name]) => !name.startsWith("foretoken_"));
  const routers = others.filter(([name]) => name.startsWith("router_"));
  const rivals = routers.length > 0 ? routers : others;
  const best = Math.min(...rivals.map(([, of]) => secondsOf(of)));
  const ours = [...runs].filter(([name]) => name.startsWith("foretoken_"));
  return Object.fromEntries(ours.map(([name, of]) => [name, best / secondsOf(of)]));
}

function settingsOf(args: readonly string[]) {
  const { values } = parseArgs({
    args: [...args],
    options: {
      workload: { type: "string", default: "single" },
      "kv-blocks": { type: "string", default: "256" },
      tasks: { type: "string" },
      rounds: { type: "string", default: "3" },
      systems: { type: "string", default: AGENT_SYSTEMS.join(",") },
      json: { type: "string" },
      simulate: { type: "string" },
      host: { type: "string", default: "amd" },
      help: { type: "boolean", default: false },
    },
  });
  if (values.help) return null;
  const { workload: asked } = values;
  if (!(asked in SHAPES)) {
    throw new Error(`--workload is ${asked}; it is one of ${Object.keys(SHAPES).join(", ")}`);
  }
  const workload = asked as WorkloadName;
  const systems = systemsOf(values.systems, AGENT_SYSTEMS);
  const tasks = Number(values.tasks ?? 32 / SHAPES[workload].siblings);
  const { launch } = readSettings([
    ...["--priced", "--dtype", "float32", "--kv-blocks", values["kv-blocks"]],
    ...["--max-model-len", String(CONTEXT_TOKENS)],
  ]);
  const engines = values.simulate === undefined ? null : Number(values.simulate);
  const host = HOSTS.find((name) => name === values.host);
  if (host === undefined) throw new Error(`--host is ${values.host}; it is ${HOSTS.join(" or ")}`);
  const { rounds, json } = values;
  return { workload, systems, tasks, rounds: Number(rounds), launch, json, engines, host };
}

const BLOCK_TOKENS = 32;
const MODELLED_TEXT = { vocabularySize: 1_376, eos: 1_359 };

async function simulate(
  { workload, tasks, rounds, launch, json, host }: NonNullable<ReturnType<typeof settingsOf>>,
  engines: number,
): Promise<void> {
  const runs = new Map<string, AgentsRun[]>(MODELLED.map((name) => [name, []]));
  const sizes = { slots: launch.slots, kvBlocks: launch.kvBlocks, blockTokens: BLOCK_TOKENS, host };
  for (let round = 1; round <= rounds; round += 1) {
    const count = Math.ceil((tasks * engines) / 2);
    const all = tasksOf(workload, count, SEED + round, MODELLED_TEXT);
    for (const name of MODELLED) {
      runs.get(name)?.push(await simulated(name, { tasks: all, engines, sizes }));
    }
  }
  writeReport(json, { workload, engines, sizes, systems: Object.fromEntries(runs) });
  print(runs);
}

async function main(): Promise<void> {
  const settings = settingsOf(process.argv.slice(2));
  if (settings === null) {
    console.log(HELP);
    return;
  }
  const { workload, systems, tasks, rounds, launch, json, engines } = settings;
  if (engines !== null) {
    await simulate(settings, engines);
    return;
  }
  const missing = vllmMissing();
  if (missing !== null) throw new Error(missing);
  console.log(`${workload}: ${SHAPES[workload].told}`);
  const servers = new Servers(launch);
  for (const signal of ["SIGINT", "SIGTERM"] as const) {
    process.once(signal, () => void servers.stop().finally(() => process.exit(130)));
  }
  const config = JSON.parse(readFileSync(join(launch.model, "config.json"), "utf8"));
  const { eos_token_id: eos, vocab_size: vocabularySize } = config;
  const runs = new Map<AgentSystem, AgentsRun[]>(systems.map((name) => [name, []]));
  try {
    if (systems.some((name) => setOf(name).includes("plugin"))) {
      const { python } = findVllm(process.env.FORETOKEN_VLLM ?? null, ROOT);
      await ensurePlugin({ python, root: ROOT });
    }
    for (const name of systems) await servers.open(setOf(name));
    const plain = await servers.open(setOf(systems[0] ?? "sticky"));
    const machine = await separate(plain.urls, launch.model, servers.fillers);
    // The first round warms up and is not counted.
    for (let round = 0; round <= rounds; round += 1) {
      const all = tasksOf(workload, round === 0 ? 1 : tasks, SEED + round, { vocabularySize, eos });
      for (let turn = 0; turn < systems.length; turn += 1) {
        const name = systems[(turn + round) % systems.length] ?? "sticky";
        const system = await servers.open(setOf(name));
        const run = await iterationOf(
          name,
          system,
          { model: launch.model, eos, tasks: all },
          servers,
        );
        const { iteration_s: s, prompt_tokens_computed: computed } = run;
        console.error(
          `round ${round}/${rounds} ${name}: ${s.toFixed(1)} s, ${computed} prompt tokens computed`,
        );
        if (round > 0) runs.get(name)?.push(run);
      }
      const found = { workload, told: SHAPES[workload].told, tasks, launch, machine };
      if (round > 0)
        writeReport(json, { ...found, systems: Object.fromEntries(runs), ratios: ratiosOf(runs) });
    }
  } finally {
    await servers.stop();
  }
  print(runs);
}

function print(runs: Runs): void {
  console.log(tableOf(runs));
  for (const [name, ratio] of Object.entries(ratiosOf(runs))) {
    console.log(`the best of the others takes ${ratio.toFixed(2)} times as long as ${name}`);
  }
}

if (import.meta.main) await main();
