// `npm run faults:simulate`: runs the fault tests in virtual time, seed by seed, and names the command that repeats a failure.

import { Command } from "commander";
import { formatCount } from "../../src/cli/format.ts";
import { EXIT_FAILED } from "../../src/cli/output.ts";
import { ITERATIONS, planSidecar } from "./simulated/plan.ts";
import { runSidecarPlan } from "./simulated/run.ts";

/** Failures are listed one by one, up to this many. */
const FAILURES_MAX = 10;

const program = new Command("faults:simulate")
  .description("Run a whole server under seeded faults in virtual time; check every event.")
  .option("--seeds <N>", "seeds to run", Number, 1_000)
  .option("--seed <N>", "the first one", Number, 1)
  .option("--first", "end with the first failure");

const {
  seeds,
  seed: first,
  ...options
} = program.parse().opts<{ seeds: number; seed: number; first?: boolean }>();
const failuresMax = options.first === true ? 1 : FAILURES_MAX;
let events = 0;
let failures = 0;
const startUs = process.cpuUsage().user;
for (let seed = first; seed < first + seeds && failures < failuresMax; seed += 1) {
  const outcome = await runSidecarPlan(planSidecar(seed));
  if (outcome.kind === "ok") {
    events += outcome.events;
    continue;
  }
  failures += 1;
  const { kind, atMs, message } = outcome;
  console.error(`seed ${seed}: ${kind} at ${atMs} ms (virtual): ${message}`);
  console.error(`  repeat it: npm run faults:simulate -- --seeds 1 --seed ${seed}`);
}
if (failures === 0) {
  const perS = (seeds * ITERATIONS) / ((process.cpuUsage().user - startUs) / 1e6);
  const checked = `${formatCount(events)} events checked, all right`;
  console.log(`SIMULATED faults: ${formatCount(seeds)} seeds from ${first}, ${checked}`);
  console.log(`  ${formatCount(Math.round(perS))} iterations per second of CPU time`);
}
process.exitCode = failures === 0 ? 0 : EXIT_FAILED;
