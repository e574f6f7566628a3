// README's simulated table against what its command prints, on the workload that is simulated fastest.

import { expect, test } from "bun:test";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { loadCore } from "../../../src/core/wasm/load.ts";
import { runWorkload, type WorkloadReport } from "./experiment.ts";
import { WORKLOADS } from "./workload.ts";

const REPORT = join(import.meta.dir, "..", "..", "..", "docs", "experiments", "simulated.json");

test("readme: the simulated table is within a hundredth of what its command prints today", async () => {
  const { workloads } = JSON.parse(readFileSync(REPORT, "utf8"));
  const { seeds, systems }: WorkloadReport = workloads.moonlight;
  const options = { draft: "off", seeds, chunkTokens: null, core: loadCore() } as const;
  const now = await runWorkload(WORKLOADS.moonlight, { ...options, systems: ["divided"] });
  const speedup = now.systems.divided?.speedup_over_verl ?? 0;
  // To update: bun bench/lab/simulate.ts --workload all --report out/lab.json
  // and bun scripts/gen-readme.ts simulated=out/lab.json
  expect(Math.abs(speedup / (systems.divided?.speedup_over_verl ?? 0) - 1)).toBeLessThan(0.01);
}, 120_000);
