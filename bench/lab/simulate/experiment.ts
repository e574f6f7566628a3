// Runs cells over seeds and sums them up: means, 95 % confidence intervals, speed-ups over veRL on the same seeds, the
// lower bound, and the published numbers beside ours. It computes; printing is simulate.ts's.

import type { CoreExports } from "../../../src/core/wasm/load.ts";
import { meanOf } from "../../../src/tools/simulate/simulation.ts";
import { intervalOf } from "../../statistics.ts";
import { type Cell, type SimDraft, simulateCell } from "./cell.ts";
import type { IterationResult } from "./iteration.ts";
import { type GroupLengths, sampleLengths } from "./lengths.ts";
import { METRICS, PUBLISHED, type PublishedCell, publishedSpeedup, rateOf } from "./published.ts";
import { bestTokensPerStep, DRAFTER_GAIN } from "./speculation.ts";
import { StepModel } from "./step-time.ts";
import { chunkTokensOf, isOfThePaper, isOtherWork, type SystemName, systemOf } from "./systems.ts";
import { engineSlots, FORWARD_PART, WORKLOADS, type Workload } from "./workload.ts";

/** A system's figures over all seeds. Its keys are a public format. */
export type SystemReport = ReturnType<typeof summed>;

export interface WorkloadReport {
  readonly systems: Readonly<Record<string, SystemReport>>;
  readonly lower_bound_s: number;
  readonly seeds: number;
  readonly requests: number;
  readonly tokens_mean: number;
}

/** How cells are simulated, whatever they are. */
export interface Sampling {
  readonly seeds: number;
  /** null: each system's own. */
  readonly chunkTokens: number | null;
  readonly core: CoreExports;
}

/** Runs of cells on all seeds, each of which is simulated once. */
class Runs {
  readonly #sampling: Sampling;
  readonly #known = new Map<string, readonly IterationResult[]>();

  constructor(sampling: Sampling) {
    this.#sampling = sampling;
  }

  async of(
    workload: Workload,
    system: SystemName,
    draft: SimDraft,
    reservesChunks = false,
  ): Promise<readonly IterationResult[]> {
    const { seeds, core } = this.#sampling;
    const key = [workload.name, workload.shape.groupSize, system, draft, reservesChunks].join(" ");
    const before = this.#known.get(key);
    if (before !== undefined) return before;
    const chunkTokens = this.#sampling.chunkTokens ?? chunkTokensOf(system);
    const runs: IterationResult[] = [];
    for (let seed = 1; seed <= seeds; seed += 1) {
      const cell = { workload, system, draft, seed, chunkTokens, reservesChunks };
      runs.push(await simulateCell(cell, core));
    }
    this.#known.set(key, runs);
    return runs;
  }
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
  options: Sampling & { readonly systems: readonly SystemName[]; readonly draft: DraftOption },
): Promise<WorkloadReport> {
  const { seeds } = options;
  const all = new Runs(options);
  const base = await all.of(workload, "verl", "off");
  const gain = options.draft === "own" ? DRAFTER_GAIN : 1;
  const best = options.draft === "off" ? 1 : bestTokensPerStep(workload, gain);
  const bounds = Array.from({ length: seeds }, (_, i) => {
    const lengths = workload.lengths ?? sampleLengths(workload.shape, i + 1);
    return lowerBoundS(workload, lengths, best);
  });
  const boundS = meanOf(bounds);
  const systems: Record<string, SystemReport> = {};
  for (const system of options.systems) {
    const draft = draftOf(system, options.draft);
    const runs = await all.of(workload, system, draft);
    systems[system] = summed({ workload, system, draft }, runs, base, boundS);
  }
  const { groups, groupSize } = workload.shape;
  const requests = workload.lengths?.flat().length ?? groups * groupSize;
  const tokens_mean = meanOf(base.map((run) => run.outputTokens / requests));
  return { systems, lower_bound_s: boundS, seeds, requests, tokens_mean };
}

/** `base`: veRL's runs without drafts on the same seeds. */
function summed(
  { workload, system, draft }: Pick<Cell, "workload" | "system" | "draft">,
  runs: readonly IterationResult[],
  base: readonly IterationResult[],
  boundS: number,
) {
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
    ci95: intervalOf(speedups),
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

/**
 * Simulates every published cell. Prompts of an iteration stay the same in number when groups change in size: accounts of
 * the paper's first version name 400, 600 and 800 prompts with 8 or 16 responses.
 */
export async function checkPublished(sampling: Sampling): Promise<CheckedCell[]> {
  const all = new Runs(sampling);
  const checked: CheckedCell[] = [];
  for (const cell of PUBLISHED) checked.push(await checkedCell(all, cell));
  return checked;
}

export type CheckedCell = Awaited<ReturnType<typeof checkedCell>>;

async function checkedCell(all: Runs, cell: PublishedCell) {
  const { system, draft, value } = cell;
  const workload = resized(WORKLOADS[cell.workload], cell.groupSize);
  const base = await all.of(workload, "verl", "off");
  const valuesOf = async (reservesChunks: boolean) => {
    const runs = await all.of(workload, system, draft, reservesChunks);
    return runs.map((run, i) => METRICS[cell.metric](run, base[i] ?? run));
  };
  const isDivided = !systemOf(system).isWhole;
  const values = await valuesOf(isDivided);
  const predicted = meanOf(values);
  return {
    ...cell,
    /** With the paper's admission; and with Foretoken's, null: the system has no admission of its own. */
    predicted,
    improved: isDivided ? meanOf(await valuesOf(false)) : null,
    ci95: intervalOf(values),
    /** predicted / value - 1; null where the published value is 0. */
    error: value === 0 ? null : predicted / value - 1,
  };
}

function resized(workload: Workload, groupSize: number | null): Workload {
  return groupSize === null ? workload : { ...workload, shape: { ...workload.shape, groupSize } };
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
