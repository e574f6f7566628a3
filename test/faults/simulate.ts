// `npm run faults:simulate`: runs the fault tests in virtual time, seed by seed, and names the command that repeats a failure.

import { Command } from "commander";
import { formatCount } from "../../src/cli/format.ts";
import { EXIT_FAILED } from "../../src/cli/output.ts";
import { loadCore } from "../../src/core/wasm/load.ts";
import { planFaults } from "./simulated/plan.ts";
import { runFaultPlan } from "./simulated/run.ts";

/** Failures are listed one by one, up to this many. */
const FAILURES_MAX = 10;
/** The core's heaps of finished rollouts are dropped with the instance. */
const SEEDS_PER_CORE = 200;

const program = new Command("faults:simulate")
  .description("Run the production rollout under seeded faults in virtual time; check every event.")
  .option("--seeds <N>", "seeds to run", Number, 1_000)
  .option("--seed <N>", "the first one", Number, 1);

const { seeds, seed: first } = program.parse().opts<{ seeds: number; seed: number }>();
let core = loadCore();
let events = 0;
let failures = 0;
for (let i = 0; i < seeds && failures < FAILURES_MAX; i += 1) {
  if (i > 0 && i % SEEDS_PER_CORE === 0) core = loadCore();
  const seed = first + i;
  const outcome = await runFaultPlan(planFaults(seed), core);
  if (outcome.kind === "ok") {
    events += outcome.events;
    continue;
  }
  failures += 1;
  console.error(
    `seed ${seed}: ${outcome.kind} at ${outcome.atMs} ms (virtual): ${outcome.message}`,
  );
  console.error(`  repeat it: npm run faults:simulate -- --seeds 1 --seed ${seed}`);
}
if (failures === 0) {
  console.log(
    `SIMULATED faults: ${formatCount(seeds)} seeds from ${first}, ${formatCount(events)} events checked, all right`,
  );
}
process.exitCode = failures === 0 ? 0 : EXIT_FAILED;
