// `foretoken simulate --faults N`: runs the fault tests seed by seed and names the command that repeats a failure.

import { loadCore } from "../core/wasm/load.ts";
import { planFaults } from "../tools/simulate/faults/plan.ts";
import { runFaultPlan } from "../tools/simulate/faults/run.ts";
import { formatCount } from "./format.ts";

/** Failures are listed one by one, up to this many. */
const FAILURES_MAX = 10;
/** The core's heaps of finished rollouts are dropped with the instance. */
const SEEDS_PER_CORE = 200;

/** true: every seed was right. */
export async function runFaults(options: {
  seeds: number;
  from: number;
  isQuiet: boolean;
}): Promise<boolean> {
  const { seeds, from, isQuiet } = options;
  let core = loadCore();
  let events = 0;
  let failures = 0;
  for (let i = 0; i < seeds && failures < FAILURES_MAX; i += 1) {
    if (i > 0 && i % SEEDS_PER_CORE === 0) core = loadCore();
    const seed = from + i;
    const outcome = await runFaultPlan(planFaults(seed), core);
    if (outcome.kind === "ok") {
      events += outcome.events;
      continue;
    }
    failures += 1;
    console.error(
      `seed ${seed}: ${outcome.kind} at ${outcome.atMs} ms (virtual): ${outcome.message}`,
    );
    console.error(`  repeat it: foretoken simulate --faults 1 --seed ${seed}`);
  }
  if (failures === 0 && !isQuiet) {
    console.log(
      `SIMULATED faults: ${formatCount(seeds)} seeds from ${from}, ${formatCount(events)} events checked, all right`,
    );
  }
  return failures === 0;
}
