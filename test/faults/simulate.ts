// `npm run faults:simulate`: runs the fault tests in virtual time, seed by seed, and names the command that repeats a failure.
// rollout: one iteration of the rollout and its journal, with workers behind faulty links. sidecar: the whole server over
// some iterations of a trainer.

import { Command } from "commander";
import { formatCount } from "../../src/cli/format.ts";
import { EXIT_FAILED } from "../../src/cli/output.ts";
import { loadCore } from "../../src/core/wasm/load.ts";
import { planFaults } from "./simulated/plan.ts";
import { runFaultPlan } from "./simulated/run.ts";
import { ITERATIONS, planSidecar } from "./simulated/sidecar-plan.ts";
import { runSidecarPlan } from "./simulated/sidecar-run.ts";

/** Failures are listed one by one, up to this many. */
const FAILURES_MAX = 10;
/** The core's heaps of finished rollouts are dropped with the instance. */
const SEEDS_PER_CORE = 200;

let core = loadCore();
let coreSeeds = 0;
function runRollout(seed: number) {
  if (coreSeeds++ === SEEDS_PER_CORE) [core, coreSeeds] = [loadCore(), 1];
  return runFaultPlan(planFaults(seed), core);
}
const SIMULATORS = {
  rollout: { iterations: 1, run: runRollout },
  sidecar: { iterations: ITERATIONS, run: (seed: number) => runSidecarPlan(planSidecar(seed)) },
} as const;

const program = new Command("faults:simulate")
  .description("Run the production code under seeded faults in virtual time; check every event.")
  .option("--seeds <N>", "seeds to run", Number, 1_000)
  .option("--seed <N>", "the first one", Number, 1)
  .option("--only <NAME>", "only the simulator rollout or sidecar", "")
  .option("--first", "end with the first failure");

type Options = { seeds: number; seed: number; only: string; first?: boolean };
const { seeds, seed: first, only, ...options } = program.parse().opts<Options>();
const failuresMax = options.first === true ? 1 : FAILURES_MAX;
const done = { events: 0, failures: 0 };
const used = { rollout: 0, sidecar: 0 };
for (let seed = first; seed < first + seeds && done.failures < failuresMax; seed += 1) {
  for (const name of ["rollout", "sidecar"] as const) {
    if (!name.startsWith(only) || done.failures >= failuresMax) continue;
    const startUs = process.cpuUsage().user;
    const outcome = await SIMULATORS[name].run(seed);
    used[name] += process.cpuUsage().user - startUs;
    if (outcome.kind === "ok") {
      done.events += outcome.events;
      continue;
    }
    done.failures += 1;
    const { kind, atMs, message } = outcome;
    console.error(`${name} seed ${seed}: ${kind} at ${atMs} ms (virtual): ${message}`);
    console.error(
      `  repeat it: npm run faults:simulate -- --only ${name} --seeds 1 --seed ${seed}`,
    );
  }
}
if (done.failures === 0) {
  const events = `${formatCount(done.events)} events checked, all right`;
  console.log(`SIMULATED faults: ${formatCount(seeds)} seeds from ${first}, ${events}`);
  for (const name of ["rollout", "sidecar"] as const) {
    const perS = (seeds * SIMULATORS[name].iterations) / (used[name] / 1e6);
    if (used[name] === 0) continue;
    console.log(`  ${name}: ${formatCount(Math.round(perS))} iterations per second of CPU time`);
  }
}
process.exitCode = done.failures === 0 ? 0 : EXIT_FAILED;
