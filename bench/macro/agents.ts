// Agents' sessions of many turns on two real vLLM servers, in a closed loop, by Foretoken and by routers that keep a
// session's requests together, interleaved in rounds of one run.
//
//   npm run bench:agents -- [--workload single|mlperf|tight|weka] [--kv-blocks 256] [--tasks N] [--rounds 3] [--systems a,b]
//       [--simulate ENGINES [--host amd|amx|xeon]] [--json FILE]
//
// kv-blocks: KV of each server in blocks of 32 tokens; 96 is short. tasks: of 8 or 16 sessions each, by default 32 sessions
// for two servers. rounds: those that count, after one that warms up. simulate: in place of real servers, on so many modelled
// ones in virtual time, as many sessions for each, whose steps take what they took on the host (agents/modelled.ts).
// The model is the bundled one widened (npm run model:priced); every text is drawn from a seed, and the same for all
// systems (vllm/vllm_bench.py). vllm-router 0.1.17 is installed in the project's cache.

import { readFileSync } from "node:fs";
import { join } from "node:path";
import { median } from "../../src/cli/rounds.ts";
import { present } from "../../src/core/base/assert.ts";
import {
  figureTable,
  flagsOf,
  interleaved,
  type Line,
  oneOf,
  SEED,
  someOf,
  writeReport,
} from "../harness.ts";
import { type AgentsRun, iterationOf } from "./agents/drive.ts";
import { HOSTS } from "./agents/hosts.ts";
import { MODELLED, simulated } from "./agents/simulate.ts";
import { AGENT_SYSTEMS, type AgentSystem, setOf } from "./agents/systems.ts";
import { CONTEXT_TOKENS, SHAPES, tasksOf, type WorkloadName } from "./agents/workload.ts";
import { readSettings } from "./vllm/settings.ts";
import { withServers } from "./vllm/systems.ts";

type Runs = ReadonlyMap<string, readonly AgentsRun[]>;

const medianOf = (runs: readonly AgentsRun[], figure: keyof AgentsRun): number =>
  median(runs.map((run) => run[figure]));

const line = (title: string, figure: keyof AgentsRun, digits = 0): Line<readonly AgentsRun[]> => [
  title,
  (runs) => medianOf(runs, figure).toFixed(digits),
];

const LINES: readonly Line<readonly AgentsRun[]>[] = [
  line("iteration s", "iteration_s", 1),
  line("trajectory p50 s", "trajectory_p50_s", 1),
  line("trajectory p99 s", "trajectory_p99_s", 1),
  line("tail s", "tail_s", 1),
  line("prompt tokens", "prompt_tokens"),
  line("  of these computed", "prompt_tokens_computed"),
  line("steps", "steps"),
  line("preempted", "preempted"),
  line("steps, s on AMD", "amd_s", 1),
  line("steps, s with AMX", "amx_s", 1),
  line("steps, s on a Xeon", "xeon_s", 1),
  line("CPU s, proxy", "proxy_cpu_s", 1),
  line("CPU s, servers' API", "api_cpu_s", 1),
  [
    "prefix hits",
    (runs) => {
      const part = medianOf(runs, "prompt_tokens_computed") / medianOf(runs, "prompt_tokens");
      return `${(100 * (1 - part)).toFixed(0)} %`;
    },
  ],
];

/** How many times as long the fastest of the others takes, by medians of rounds: of the router's modes if they ran. */
function ratiosOf(runs: Runs): Record<string, number> {
  const seconds = [...runs].map(([name, of]) => [name, medianOf(of, "iteration_s")] as const);
  const isOurs = ([name]: readonly [string, number]) => name.startsWith("foretoken_");
  const others = seconds.filter((one) => !isOurs(one));
  const routers = others.filter(([name]) => name.startsWith("router_"));
  const best = Math.min(...(routers.length > 0 ? routers : others).map(([, s]) => s));
  return Object.fromEntries(seconds.filter(isOurs).map(([name, s]) => [name, best / s]));
}

function print(runs: Runs): void {
  console.log(figureTable(runs, LINES));
  for (const [name, ratio] of Object.entries(ratiosOf(runs))) {
    console.log(`the best of the others takes ${ratio.toFixed(2)} times as long as ${name}`);
  }
}

const FLAGS = {
  workload: "single",
  kvBlocks: 256,
  tasks: null,
  rounds: 3,
  systems: null,
  simulate: null,
  host: "amd",
} as const;
const flags = flagsOf(import.meta.path, FLAGS);
const { rounds, json, kvBlocks } = flags;
const workload = oneOf("workload", flags.workload, Object.keys(SHAPES) as WorkloadName[]);
const tasks = Number(flags.tasks ?? 32 / SHAPES[workload].siblings);
const { launch } = readSettings([
  ...["--priced", "--dtype", "float32", "--kv-blocks", String(kvBlocks)],
  ...["--max-model-len", String(CONTEXT_TOKENS)],
]);

const BLOCK_TOKENS = 32;
const MODELLED_TEXT = { vocabularySize: 1_376, eos: 1_359 };

async function simulate(engines: number): Promise<void> {
  const host = oneOf("host", flags.host, HOSTS);
  const runs = new Map<string, AgentsRun[]>(MODELLED.map((name) => [name, []]));
  const sizes = { slots: launch.slots, kvBlocks, blockTokens: BLOCK_TOKENS, host };
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

async function real(): Promise<void> {
  const names = someOf("systems", flags.systems, AGENT_SYSTEMS);
  const { told } = SHAPES[workload];
  console.log(`${workload}: ${told}`);
  const config = JSON.parse(readFileSync(join(launch.model, "config.json"), "utf8"));
  const { eos_token_id: eos, vocab_size: vocabularySize } = config;
  await withServers(names, { launch, setOf }, async (systems, servers, machine) => {
    const run = async (name: AgentSystem, round: number) => {
      const all = tasksOf(workload, round === 0 ? 1 : tasks, SEED + round, { vocabularySize, eos });
      const system = present(systems.get(name), "all are open");
      const made = await iterationOf(
        name,
        system,
        { model: launch.model, eos, tasks: all },
        servers,
      );
      const { iteration_s: s, prompt_tokens_computed: computed } = made;
      const said = `${s.toFixed(1)} s, ${computed} prompt tokens computed`;
      console.error(`round ${round}/${rounds} ${name}: ${said}`);
      return made;
    };
    const about = { workload, told, tasks, launch, machine };
    const runs = await interleaved(names, rounds, run, (so) =>
      writeReport(json, { ...about, systems: Object.fromEntries(so), ratios: ratiosOf(so) }),
    );
    print(runs);
  });
}

await (flags.simulate === null ? real() : simulate(Number(flags.simulate)));
