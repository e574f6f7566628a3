// Whole simulated iterations on a small workload: what must hold for every system, whatever the numbers are.

import { expect, test } from "bun:test";
import { loadCore } from "../../../src/core/wasm/load.ts";
import { type Cell, type SimDraft, simulateCell } from "./cell.ts";
import { lowerBoundS } from "./experiment.ts";
import { sampleLengths } from "./lengths.ts";
import { bestTokensPerStep, DRAFTER_GAIN } from "./speculation.ts";
import { SYSTEM_NAMES, systemOf } from "./systems.ts";
import { WORKLOADS, type Workload } from "./workload.ts";

const core = loadCore();

/** Two instances, so that every run takes some milliseconds. */
const small: Workload = {
  ...WORKLOADS["qwen2-vl-72b"],
  name: "small",
  instances: 2,
  shape: { ...WORKLOADS["qwen2-vl-72b"].shape, groups: 40 },
};
const cell = (options: Partial<Cell>): Cell => ({
  workload: small,
  system: "seer",
  draft: "off",
  seed: 1,
  chunkTokens: 2048,
  ...options,
});
const wanted = sampleLengths(small.shape, 1);

/** Drafts that a system is simulated with beside none. */
const DRAFTS: Partial<Record<string, readonly SimDraft[]>> = {
  verl: ["vanilla", "grouped"],
  "finish-first": ["grouped"],
  seer: ["grouped"],
  foretoken: ["own"],
};

for (const system of SYSTEM_NAMES) {
  for (const draft of ["off", ...(DRAFTS[system] ?? [])] as const) {
    test(`simulation: ${system} with drafts ${draft} makes every token once, within the bound`, async () => {
      const result = await simulateCell(cell({ system, draft }), core);
      if (systemOf(system).run !== undefined) {
        const { groups, groupSize } = small.shape;
        const returned = result.returnedLengths.length / result.iterations;
        expect(returned).toBeGreaterThanOrEqual(groups * groupSize);
        return;
      }
      expect(result.reached).toEqual(wanted.flat());
      expect(result.preemptions > 0).toBe(systemOf(system).isWhole);
      const best =
        draft === "off" ? 1 : bestTokensPerStep(small, draft === "own" ? DRAFTER_GAIN : 1);
      // A draft model's acceptance is not the suffix drafts' that the bound knows.
      if (draft !== "vanilla") {
        expect(result.wallS).toBeGreaterThan(lowerBoundS(small, wanted, best));
      }
      if (draft === "off") expect(result.tokensPerStep).toBeCloseTo(1, 3);
      else expect(result.tokensPerStep).toBeGreaterThan(1);
    });
  }
}

test("simulation: a slow engine is found, and holds up the end less", async () => {
  const slow = { ...small, instances: 4, slow: { instances: 1, factor: 3 } };
  const wallS = async (workload: Workload, isPaced: boolean) =>
    (await simulateCell(cell({ workload, system: "foretoken", isPaced }), core)).wallS;
  expect(await wallS(slow, true)).toBeLessThan(0.95 * (await wallS(slow, false)));
  const equal = { ...slow, slow: { instances: 0, factor: 3 } };
  expect(await wallS(equal, true)).toBe(await wallS(equal, false));
});

test("simulation: nor is anything preempted where an engine holds a dozen divided requests, whatever their chunks", async () => {
  const { hardware, model } = small;
  // A few thousand tokens of KV: what runs grows by more than is kept ahead within a few steps.
  const left = (4_000 * model.kvBytesPerToken + model.denseBytes) / 8;
  const short: Workload = {
    ...small,
    hardware: { ...hardware, hbmBytes: left },
    promptTokens: 16,
    shape: { ...small.shape, groups: 8, tokensMax: 2_048, tokensMean: 400 },
  };
  for (const system of ["divided", "seer", "oracle", "foretoken"] as const) {
    for (const chunkTokens of [64, 256, 2048]) {
      const result = await simulateCell(cell({ workload: short, system, chunkTokens }), core);
      expect([system, chunkTokens, result.preemptions]).toEqual([system, chunkTokens, 0]);
    }
  }
});

test("bound: one long response alone takes at least what the longest needs", async () => {
  const lone: Workload = { ...small, lengths: [[40_000]] };
  const result = await simulateCell(cell({ workload: lone, system: "divided" }), core);
  const bound = lowerBoundS(lone, [[40_000]], 1);
  expect(result.wallS).toBeGreaterThan(bound);
  // Chunks and prefill are all that an undisturbed response adds.
  expect(result.wallS).toBeLessThan(bound * 1.02);
});
