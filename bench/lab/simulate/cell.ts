// One cell of a comparison: one system on one workload with one kind of drafting and one seed. Everything that is drawn
// by chance is drawn from the seed, so a cell is repeated exactly by naming it.

import { present } from "../../../src/core/base/assert.ts";
import type { RequestId } from "../../../src/core/base/ids.ts";
import type { Scheduler } from "../../../src/core/schedule/scheduler.ts";
import type { CoreExports } from "../../../src/core/wasm/load.ts";
import { Random } from "../../../test/suite/random.ts";
import {
  Iteration,
  type IterationOptions,
  type IterationResult,
  type Reached,
} from "./iteration.ts";
import { type GroupLengths, type LengthShape, sampleLengths } from "./lengths.ts";
import type { IterationChoices, RelatedParts } from "./related.ts";
import {
  DRAFTER_GAIN,
  groupedAcceptanceLength,
  ModelSpeculation,
  qualityFor,
  SuffixSpeculation,
} from "./speculation.ts";
import { type SystemName, systemOf } from "./systems.ts";
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
  /** See IterationOptions. */
  readonly isPaced?: boolean;
  /** Admission as in the paper: a chunk's KV is reserved as a whole. Default: a few tokens ahead. */
  readonly reservesChunks?: boolean;
}

export async function simulateCell(cell: Cell, core: CoreExports): Promise<IterationResult> {
  const { workload, seed, system } = cell;
  const run = (iteration: IterationChoices) =>
    new Iteration(iterationOf(cell, core, iteration)).result();
  const related = systemOf(system).run;
  if (related !== undefined) {
    const lengths: RelatedParts["lengths"] = (iteration, shape) => drawn(cell, iteration, shape);
    return related({ workload, lengths, simulate: run });
  }
  return run({ lengths: workload.lengths ?? sampleLengths(workload.shape, seed) });
}

export function iterationOf(
  cell: Cell,
  core: CoreExports,
  iteration: IterationChoices,
): IterationOptions {
  const { workload, system, chunkTokens, isPaced = true } = cell;
  return {
    workload,
    ...iteration,
    core,
    chunkTokens,
    isDivided: !systemOf(system).isWhole,
    schedulerFor: (parts) => {
      const scheduler = systemOf(system).scheduler(parts);
      return cell.reservesChunks === true ? reservingChunks(scheduler) : scheduler;
    },
    ...draftingOf(cell),
    isPaced,
  };
}

/** More than any chunk has. */
const AHEAD_TOKENS = 2 ** 30;

/** The paper's admission: KV of the whole chunk is reserved when it begins, so no chunk has to end early. */
function reservingChunks(scheduler: Scheduler): Scheduler {
  const schedule = scheduler.schedule.bind(scheduler);
  scheduler.schedule = (slots, ...rest) =>
    schedule(
      slots.map((slot) => ({ ...slot, aheadTokens: AHEAD_TOKENS })),
      ...rest,
    );
  return scheduler;
}

/** Groups of an iteration; of a log of lengths, groups and responses drawn at random. */
function drawn(cell: Cell, iteration: number, changes: Partial<LengthShape>): GroupLengths {
  const { lengths } = cell.workload;
  const shape = { ...cell.workload.shape, ...changes };
  const seed = cell.seed + iteration * SEED_STRIDE;
  if (lengths === null) return sampleLengths(shape, seed);
  const random = new Random(seed, "groups");
  const one = <Of>(list: readonly Of[]) => present(list[random.below(list.length)], "not empty");
  return Array.from({ length: shape.groups }, () => {
    const group = one(lengths);
    if (changes.groupSize === undefined) return group;
    return Array.from({ length: shape.groupSize }, (_, i) => group[i] ?? one(group));
  });
}

/** Iterations of one seed share no lengths with those of another. */
const SEED_STRIDE = 1_000_003;

function draftingOf(cell: Cell): Pick<IterationOptions, "speculationFor" | "qualityOf"> {
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
    const sibling = tokens[i] ?? 0;
    if (i !== id) references += sibling >= own ? 1 : sibling / own;
  }
  const at = Math.round(Math.min(references, REFERENCES_MAX) / TABLE_STEP);
  return table[at] ?? 0;
}
