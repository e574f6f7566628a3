// Runs cells over seeds and sums them up: means, 95 % confidence intervals, speed-ups over veRL on the same seeds, the
// lower bound, and the published numbers beside ours. It computes; printing is src/cli's.

import type { CoreExports } from "../../../src/core/wasm/load.ts";
import { meanOf } from "../../../src/tools/simulate/simulation.ts";
import { studentOf } from "../../macro/vllm/statistics.ts";
import { type Cell, type SimDraft, simulateCell } from "./cell.ts";
import type { IterationResult } from "./iteration.ts";
import { type GroupLengths, sampleLengths } from "./lengths.ts";
import { type Metric, PUBLISHED, type PublishedCell, publishedSpeedup } from "./published.ts";
import { bestTokensPerStep, DRAFTER_GAIN } from "./speculation.ts";
import { StepModel } from "./step-time.ts";
import { chunkTokensOf, isOfThePaper, isOtherWork, type SystemName, systemOf } from "./systems.ts";
import { engineSlots, FORWARD_PART, WORKLOADS, type Workload } from "./workload.ts";

/** Runs of a system on all seeds, and veRL's without drafts on the same. */
interface Measured {
  readonly workload: Workload;
  readonly system: SystemName;
  readonly draft: SimDraft;
  readonly runs: readonly IterationResult[];
  readonly base: readonly IterationResult[];
  readonly boundS: number;
}

/** A system's figures over all seeds. Its keys are a public format. */
export type SystemReport = ReturnType<typeof summed>;

export interface WorkloadReport {
  readonly systems: Readonly<Record<string, SystemReport>>;
  readonly lower_bound_s: number;
  readonly seeds: number;
  readonly requests: number;
  readonly tokens_mean: number;
}

export interface SimulateReport {
  /** Always true: these are no measurements of engines. */
  readonly simulated: true;
  readonly workloads: Readonly<Record<string, WorkloadReport>>;
}

export interface ExperimentOptions {
  readonly systems: readonly SystemName[];
  readonly draft: DraftOption;
  readonly seeds: number;
  /** null: each system's own. */
  readonly chunkTokens: number | null;
  readonly core: CoreExports;
}

export type DraftOption = "off" | "grouped" | "own";

/** Baselines draft as in the paper; group-aware systems draft from groups; own: only those that are not the paper's. */
function draftOf(system: SystemName, draft: DraftOption): SimDraft {
  if (draft === "off") return "off";
  if (draft === "own" && !isOfThePaper(system)) return "own";
  return systemOf(system).isWhole ? "vanilla" : "grouped";
}

/** Speed-ups are over veRL without drafting, as the paper's are. */
export async function runWorkload(
  workload: Workload,
  options: ExperimentOptions,
): Promise<WorkloadReport> {
  const seeds = Array.from({ length: options.seeds }, (_, i) => i + 1);
  const runsOf = async (system: SystemName, draft: SimDraft): Promise<IterationResult[]> => {
    const chunkTokens = options.chunkTokens ?? chunkTokensOf(system);
    const runs: IterationResult[] = [];
    for (const seed of seeds) {
      const cell = { workload, system, draft, seed, chunkTokens };
      runs.push(await simulateCell(cell, options.core));
    }
    return runs;
  };
  const base = await runsOf("verl", "off");
  const best = bestOf(workload, options.draft);
  const boundS = meanOf(
    seeds.map((seed) => {
      const lengths = workload.lengths ?? sampleLengths(workload.shape, seed);
      return lowerBoundS(workload, lengths, best);
    }),
  );
  const systems: Record<string, SystemReport> = {};
  for (const system of options.systems) {
    const draft = draftOf(system, options.draft);
    const runs = await runsOf(system, draft);
    systems[system] = summed({ workload, system, draft, runs, base, boundS });
  }
  const requests =
    workload.lengths?.flat().length ?? workload.shape.groups * workload.shape.groupSize;
  const tokensMean = meanOf(base.map((run) => run.outputTokens / requests));
  const all = { seeds: options.seeds, requests, tokens_mean: tokensMean };
  return { systems, lower_bound_s: boundS, ...all };
}

function bestOf(workload: Workload, draft: DraftOption): number {
  if (draft === "off") return 1;
  return bestTokensPerStep(workload, draft === "own" ? DRAFTER_GAIN : 1);
}

function summed({ workload, system, draft, runs, base, boundS }: Measured) {
  const mean = (value: (run: IterationResult) => number) => meanOf(runs.map(value));
  const speedups = runs.map((run, i) => rateOf(run) / rateOf(base[i] ?? run));
  const wallS = mean((run) => run.wallS);
  const lengthOf = (run: IterationResult) => meanOf(run.biasLengths ?? run.returnedLengths);
  const iterationS = meanOf(
    runs.map((run, i) => iterationSecondsOf(workload, run, base[i] ?? run)),
  );
  const baseS = meanOf(base.map((run) => iterationSecondsOf(workload, run, run)));
  return {
    wall_s: wallS,
    tail_s: mean((run) => run.tailS),
    preemptions: mean((run) => run.preemptions),
    output_tokens_per_s: mean(rateOf),
    speedup_over_verl: meanOf(speedups),
    /** Interval of speedup_over_verl, Student's t over the seeds; null with one seed. */
    ci95: interval(speedups),
    published_speedup: publishedSpeedup(workload.name, system, draft),
    /** 1 - tail_s / veRL's. */
    tail_cut: 1 - mean((run) => run.tailS) / meanOf(base.map((run) => run.tailS)),
    /** wall_s over the lower bound; null where none holds (a partial rollout does other work). */
    over_lower_bound: isOtherWork(system) ? null : wallS / boundS,
    idle_share: mean((run) => run.idleShare),
    migrations: mean((run) => run.migrations),
    migrated_bytes: mean((run) => run.migratedBytes),
    tokens_per_step: mean((run) => run.tokensPerStep),
    /** Rollout, training and weight update, for as many responses as veRL returns; and veRL's over it. */
    iteration_s: iterationS,
    iteration_speedup: baseS / iterationS,
    /** Mean length of the responses that are returned over that of all, less one. */
    length_bias: mean(lengthOf) / meanOf(base.map(lengthOf)) - 1,
    /** Part of the returned tokens that weights of earlier iterations made. */
    stale_share: mean((run) => run.staleShare),
    /** Seconds of GPUs that 1,000 returned tokens take. */
    gpu_s_per_1000_tokens:
      1000 * workload.deployment.gpus * mean((run) => run.engineS / returnedTokens(run)),
    /** Effective training time ratio: the iteration's time if no engine left over its own; null: none leaves. */
    ettr:
      runs[0]?.calmS == null ? null : 1 - mean((run) => run.wallS - (run.calmS ?? 0)) / iterationS,
    draft,
  };
}

/** Tokens that an iteration hands out. */
const returnedTokens = (run: IterationResult) =>
  run.returnedLengths.reduce((sum, n) => sum + n, 0) / run.iterations;

/** Seconds of an iteration. Training takes time by the tokens that it gets; what can run beside the rollout does. */
function iterationSecondsOf(
  { after }: Workload,
  run: IterationResult,
  verl: IterationResult,
): number {
  const perToken = (after.training * verl.wallS) / verl.outputTokens;
  const training = perToken * returnedTokens(run);
  const hidden = Math.min(FORWARD_PART * training, run.freeS);
  const wanted = (verl.returnedLengths.length * run.iterations) / run.returnedLengths.length;
  return (run.wallS + training - hidden) * wanted + after.update * verl.wallS;
}

/** A published figure beside the simulated one. */
export interface CheckedCell extends PublishedCell {
  /** With the paper's admission. */
  readonly predicted: number;
  /** With Foretoken's; null: the system has no admission of its own. */
  readonly improved: number | null;
  readonly ci95: readonly [number, number] | null;
  /** predicted / value - 1; null where the published value is 0. */
  readonly error: number | null;
}

/**
 * Simulates every published cell. Prompts of an iteration stay the same in number when groups change in size: accounts of
 * the paper's first version name 400, 600 and 800 prompts with 8 or 16 responses.
 */
export async function checkPublished(options: {
  readonly seeds: number;
  /** null: each system's own. */
  readonly chunkTokens: number | null;
  readonly core: CoreExports;
  readonly workloads: readonly string[];
}): Promise<CheckedCell[]> {
  const known = new Map<string, IterationResult[]>();
  const runsOf = async (
    cell: PublishedCell,
    { system, draft, reservesChunks = false }: Pick<Cell, "system" | "draft" | "reservesChunks">,
  ) => {
    const workload = resized(WORKLOADS[cell.workload], cell.groupSize);
    const admission = reservesChunks ? " whole chunks" : "";
    const key = `${workload.name} ${workload.shape.groupSize} ${system} ${draft}${admission}`;
    const before = known.get(key);
    if (before !== undefined) return before;
    const runs: IterationResult[] = [];
    for (let seed = 1; seed <= options.seeds; seed += 1) {
      const chunkTokens = options.chunkTokens ?? chunkTokensOf(system);
      const made = { workload, system, draft, seed, chunkTokens };
      runs.push(await simulateCell({ ...made, reservesChunks }, options.core));
    }
    known.set(key, runs);
    return runs;
  };
  const checked: CheckedCell[] = [];
  for (const cell of PUBLISHED) {
    if (!options.workloads.includes(cell.workload)) continue;
    const { system, draft } = cell;
    const base = await runsOf(cell, { system: "verl", draft: "off" });
    const valuesOf = async (reservesChunks: boolean) => {
      const runs = await runsOf(cell, { system, draft, reservesChunks });
      return runs.map((run, i) => measured(cell.metric, run, base[i] ?? run));
    };
    const isDivided = !systemOf(system).isWhole;
    const values = await valuesOf(isDivided);
    const improved = isDivided ? meanOf(await valuesOf(false)) : null;
    const predicted = meanOf(values);
    const error = cell.value === 0 ? null : predicted / cell.value - 1;
    checked.push({ ...cell, predicted, improved, ci95: interval(values), error });
  }
  return checked;
}

function resized(workload: Workload, groupSize: number | null): Workload {
  const { shape } = workload;
  if (groupSize === null || groupSize === shape.groupSize) return workload;
  return { ...workload, shape: { ...shape, groupSize } };
}

function measured(metric: Metric, run: IterationResult, base: IterationResult): number {
  switch (metric) {
    case "speedup":
      return rateOf(run) / rateOf(base);
    case "wall_s":
      return run.wallS;
    case "tail_s":
      return run.tailS;
    case "tail_ratio":
      return run.tailS / base.tailS;
    case "preemptions":
      return run.preemptions;
    case "idle_share":
      return run.idleShare;
    case "finish_spread":
      return run.finishSpread;
    case "late_start":
      return run.lateStartShare;
    case "migrated_tb":
      return run.migratedBytes / 1e12;
  }
}

const rateOf = (run: IterationResult) => run.outputTokens / run.wallS;

function interval(values: readonly number[]): readonly [number, number] | null {
  const n = values.length;
  if (n < 2) return null;
  const mean = meanOf(values);
  const variance = values.reduce((sum, value) => sum + (value - mean) ** 2, 0) / (n - 1);
  const half = studentOf(n - 1) * Math.sqrt(variance / n);
  return [mean - half, mean + half];
}

/**
 * Seconds; the larger of two bounds. `tokensPerStepMax`: what a step yields for one request at most, 1 without drafts.
 *
 * Path: the longest response alone on an engine, one row a step.
 * Work: a step of B requests with C tokens of context takes at least a + k C (a: the weights, k: a token of
 * KV) and what every row after the first adds (exchange between GPUs, host). Over all steps, the C add up to the
 * contexts of all tokens; a step has at most the KV budget of context and at most the engine's slots of requests, so
 * there are at least so many steps. Spread evenly over the instances.
 * Both begin with the prefill of prompts, for which decoding waits.
 */
export function lowerBoundS(
  workload: Workload,
  lengths: GroupLengths,
  tokensPerStepMax: number,
): number {
  const model = new StepModel(workload);
  const { instances, promptTokens, deployment } = workload;
  const weightsMs = model.stepMs(1, 1, 0);
  const perContextMs = (model.stepMs(1, 1, model.kvTokens) - weightsMs) / model.kvTokens;
  let steps = 0;
  let context = 0;
  let longest = 0;
  for (const group of lengths) {
    for (const length of group) {
      steps += length / tokensPerStepMax;
      context += (length * (promptTokens + (length - 1) / 2)) / tokensPerStepMax;
      longest = Math.max(longest, length);
    }
  }
  const stepsLeast = Math.max(context / model.kvTokens, steps / engineSlots(deployment));

  const perRowMs = model.rowMs;
  const rowsMs = (steps - stepsLeast) * perRowMs;
  const prefillMs = model.prefillMs(promptTokens, 0);
  const prefillsMs = lengths.flat().length * prefillMs;
  const stepsMs = stepsLeast * weightsMs + rowsMs + context * perContextMs;
  const workMs = (prefillsMs + stepsMs) / instances;
  const pathSteps = longest / tokensPerStepMax;
  const contextMean = promptTokens + (longest - 1) / 2;
  const pathMs = prefillMs + pathSteps * (weightsMs + perContextMs * contextMean);
  return Math.max(workMs, pathMs) / 1000;
}
