// One cell of a comparison: one system on one workload with one kind of drafting and one seed. Everything that is drawn
// by chance is drawn from the seed, so a cell is repeated exactly by naming it.

import type { RequestId } from "../../core/base/ids.ts";
import { Random } from "../../core/base/random.ts";
import type { LengthPrior } from "../../core/context/context.ts";
import type { CoreExports } from "../../core/wasm/load.ts";
import { type GroupLengths, sampleLengths } from "./lengths.ts";
import {
  type Reached,
  Simulation,
  type SimulationOptions,
  type SimulationResult,
} from "./simulation.ts";
import {
  DRAFTER_GAIN,
  groupedAcceptanceLength,
  ModelSpeculation,
  qualityFor,
  SuffixSpeculation,
} from "./speculation.ts";
import { isDividedSystem, type SystemName, simSchedulerFor } from "./systems.ts";
import type { Workload } from "./workload.ts";

/** vanilla: as the paper's baselines drafted. grouped: from the group's responses, as Seer. own: by Foretoken's drafter. */
const SIM_DRAFTS = ["off", "vanilla", "grouped", "own"] as const;
export type SimDraft = (typeof SIM_DRAFTS)[number];

export interface Cell {
  readonly workload: Workload;
  readonly system: SystemName;
  readonly draft: SimDraft;
  readonly seed: number;
  readonly chunkTokens: number;
  readonly isRecorded: boolean;
  /** See SimulationOptions. */
  readonly lengthPrior?: LengthPrior;
  readonly isPaced?: boolean;
}

export async function simulateCell(cell: Cell, core: CoreExports): Promise<SimulationResult> {
  if (cell.system === "partial-rollout") return partialRollout(cell, core);
  const lengths = cell.workload.lengths ?? sampleLengths(cell.workload.shape, cell.seed);
  return simulate(cell, core, { lengths, groupsWanted: null, progress: null });
}

type Iteration = Pick<SimulationOptions, "lengths" | "groupsWanted" | "progress">;

function simulate(cell: Cell, core: CoreExports, iteration: Iteration): Promise<SimulationResult> {
  const { workload, system, chunkTokens, isRecorded, lengthPrior, isPaced } = cell;
  return new Simulation({
    workload,
    ...iteration,
    core,
    chunkTokens,
    isDivided: isDividedSystem(system),
    schedulerFor: (parts) => simSchedulerFor(system, parts),
    ...draftingOf(cell),
    isRecorded,
    ...(lengthPrior && { lengthPrior }),
    ...(isPaced === undefined ? {} : { isPaced }),
  }).run();
}

/** APRIL starts twice the groups, ends with the required number, and continues the rest in the next iteration. */
const OVER_ISSUE = 2;
/** Iterations before the measured one, until the number of carried-over requests is steady. */
const WARM_UP = 3;

async function partialRollout(cell: Cell, core: CoreExports): Promise<SimulationResult> {
  const { shape } = cell.workload;
  let carried: { lengths: number[]; progress: number[] }[] = [];
  for (let iteration = 0; ; iteration += 1) {
    const fresh = freshGroups(cell, shape.groups * OVER_ISSUE - carried.length, iteration);
    const lengths: GroupLengths = [...carried.map((group) => group.lengths), ...fresh];
    const progress = [
      ...carried.flatMap((group) => group.progress),
      ...fresh.flatMap((group) => group.map(() => 0)),
    ];
    const result = await simulate(cell, core, { lengths, groupsWanted: shape.groups, progress });
    if (iteration === WARM_UP) return result;
    carried = unfinishedOf(lengths, result.reached);
  }
}

/** New groups for an iteration; of a log of lengths, groups drawn at random. */
function freshGroups(cell: Cell, groups: number, iteration: number): GroupLengths {
  const { shape, lengths } = cell.workload;
  const seed = cell.seed + iteration * SEED_STRIDE;
  if (lengths === null) return sampleLengths({ ...shape, groups }, seed);
  const random = new Random(seed, "groups");
  return Array.from({ length: groups }, () => lengths[random.below(lengths.length)] ?? [1]);
}

/** Iterations of one seed share no lengths with those of another. */
const SEED_STRIDE = 1_000_003;

function unfinishedOf(
  lengths: GroupLengths,
  reached: readonly number[],
): { lengths: number[]; progress: number[] }[] {
  const left: { lengths: number[]; progress: number[] }[] = [];
  let from = 0;
  for (const group of lengths) {
    const progress = reached.slice(from, from + group.length);
    from += group.length;
    if (progress.some((tokens, i) => tokens < (group[i] ?? 0))) {
      left.push({ lengths: [...group], progress });
    }
  }
  return left;
}

function draftingOf(cell: Cell): Pick<SimulationOptions, "speculationFor" | "qualityOf"> {
  const { workload, draft } = cell;
  const { vanilla, selfAcceptanceLength } = workload;
  const suffix = () => new SuffixSpeculation();
  if (draft === "off") return { speculationFor: null, qualityOf: () => 0 };
  if (draft === "grouped" || draft === "own") {
    const qualities = qualityTable(selfAcceptanceLength, draft === "own" ? DRAFTER_GAIN : 1);
    return {
      speculationFor: suffix,
      qualityOf: (id, reached) => qualityIn(qualities, id, reached),
    };
  }
  if (vanilla.kind === "model") {
    return { speculationFor: () => new ModelSpeculation(vanilla), qualityOf: () => 0 };
  }
  const quality = qualityFor(selfAcceptanceLength);
  return { speculationFor: suffix, qualityOf: () => quality };
}

/** Qualities at 0, 1/4, 2/4 ... references. */
const TABLE_STEP = 0.25;
const REFERENCES_MAX = 64;

function qualityTable(own: number, gain: number): Float64Array {
  const table = new Float64Array(REFERENCES_MAX / TABLE_STEP + 1);
  for (let i = 0; i < table.length; i += 1) {
    table[i] = qualityFor(gain * groupedAcceptanceLength(own, i * TABLE_STEP));
  }
  return table;
}

/** A sibling counts as far as it has come, up to where the response itself is. */
function qualityIn(table: Float64Array, id: RequestId, { tokens, from, to }: Reached): number {
  const own = (tokens[id] ?? 0) + 1;
  const end = to[id] ?? 0;
  let references = 0;
  for (let i = from[id] ?? 0; i < end; i += 1) {
    if (i !== id) references += Math.min(1, (tokens[i] ?? 0) / own);
  }
  const at = Math.round(Math.min(references, REFERENCES_MAX) / TABLE_STEP);
  return table[at] ?? 0;
}
