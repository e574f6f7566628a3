// The time left as a rollout estimates it, on ten simulated iterations, from a third of the time on.

import { expect, test } from "bun:test";
import { loadCore } from "../../../src/core/wasm/load.ts";
import { simulateCell } from "./cell.ts";
import { chunkTokensOf } from "./systems.ts";
import { WORKLOADS } from "./workload.ts";

const core = loadCore();
const FACTOR = 1.5;

/** The part of all estimates that were within FACTOR of the truth, in one iteration on four engines. */
async function within(system: "divided" | "seer" | "foretoken", seed: number): Promise<number> {
  const { moonlight } = WORKLOADS;
  const shape = { ...moonlight.shape, groups: 50 };
  const workload = { ...moonlight, instances: 4, shape };
  const chunkTokens = chunkTokensOf(system);
  const cell = { workload, system, draft: "off", seed, chunkTokens, isRecorded: true } as const;
  const { wallS, timeLeft } = await simulateCell(cell, core);
  const said = timeLeft.filter(({ atS }) => atS > wallS / 3 && atS < 0.95 * wallS);
  const ratios = said.map(({ atS, leftS }) => leftS / (wallS - atS));
  expect(ratios.length).toBeGreaterThan(20);
  return ratios.filter((ratio) => Math.max(ratio, 1 / ratio) <= FACTOR).length / ratios.length;
}

test("time left: from a third of the time on it is within a factor of 1.5 in three of four cases", async () => {
  const parts: number[] = [];
  for (const seed of [1, 2, 3, 4]) parts.push(await within("foretoken", seed));
  for (const seed of [1, 2, 3]) parts.push(await within("divided", seed));
  for (const seed of [1, 2, 3]) parts.push(await within("seer", seed));
  const mean = parts.reduce((sum, part) => sum + part, 0) / parts.length;
  if (process.env.FIGURES === "1") console.log(parts.map((part) => part.toFixed(2)).join(" "));
  expect(mean).toBeGreaterThan(0.75);
}, 180_000);
