// The time left as a rollout estimates it, on ten simulated iterations, from a third of the time on.

import { expect, test } from "bun:test";
import { loadCore } from "../../../src/core/wasm/load.ts";
import { iterationOf } from "./cell.ts";
import { Iteration } from "./iteration.ts";
import { sampleLengths } from "./lengths.ts";
import { chunkTokensOf } from "./systems.ts";
import { WORKLOADS } from "./workload.ts";

const core = loadCore();
const FACTOR = 1.5;

/** Between two estimates. */
const EVERY_S = 10;

class Estimated extends Iteration {
  readonly said: { readonly atS: number; readonly leftS: number }[] = [];

  protected override passing(ms: number): void {
    super.passing(ms);
    const atS = this.nowMs() / 1000;
    if (atS < (this.said.at(-1)?.atS ?? 0) + EVERY_S) return;
    const leftS = this.rollout.meter.progress().etaS;
    if (leftS !== null) this.said.push({ atS, leftS });
  }
}

/** The part of all estimates that were within FACTOR of the truth, in one iteration on four engines. */
async function within(system: "divided" | "seer" | "foretoken", seed: number): Promise<number> {
  const { moonlight } = WORKLOADS;
  const shape = { ...moonlight.shape, groups: 50 };
  const workload = { ...moonlight, instances: 4, shape };
  const chunkTokens = chunkTokensOf(system);
  const cell = { workload, system, draft: "off", seed, chunkTokens } as const;
  const iteration = new Estimated(iterationOf(cell, core, { lengths: sampleLengths(shape, seed) }));
  const { wallS } = await iteration.result();
  const said = iteration.said.filter(({ atS }) => atS > wallS / 3 && atS < 0.95 * wallS);
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
