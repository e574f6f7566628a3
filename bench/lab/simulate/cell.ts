// One cell of a comparison: one system on one workload with one kind of drafting and one seed. Everything that is drawn
// by chance is drawn from the seed, so a cell is repeated exactly by naming it.

import { present } from "../../../src/core/base/assert.ts";
import type { RolloutRequest } from "../../../src/core/request/buffer.ts";
import type { Scheduler } from "../../../src/core/schedule/scheduler.ts";
import type { CoreExports } from "../../../src/core/wasm/load.ts";
import { Random } from "../../../test/suite/random.ts";
import { Iteration, type IterationOptions, type IterationResult } from "./iteration.ts";
import { type GroupLengths, type LengthShape, sampleLengths } from "./lengths.ts";
import type { IterationChoices } from "./related.ts";
import {
  DRAFTER_GAIN,
  draftModel,
  groupedAcceptanceLength,
  qualityFor,
  SUFFIXES,
} from "./speculation.ts";
import { type SystemName, systemOf } from "./systems.ts";
import type { Workload } from "./workload.ts";

/** vanilla: as the paper's baselines drafted. grouped: from the group's responses, as Seer. own: by Foretoken's drafter. */
export type SimDraft = "off" | "vanilla" | "grouped" | "own";

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
  const { workload, seed, system, chunkTokens, isPaced = true } = cell;
  const { scheduler, isWhole, run: related } = systemOf(system);
  const simulate = (iteration: IterationChoices) =>
    new Iteration({
      workload,
      ...iteration,
      core,
      chunkTokens,
      isDivided: !isWhole,
      schedulerFor: (parts) =>
        cell.reservesChunks === true ? reservingChunks(scheduler(parts)) : scheduler(parts),
      ...draftingOf(cell),
      isPaced,
    }).result();
  if (related === undefined) {
    return simulate({ lengths: workload.lengths ?? sampleLengths(workload.shape, seed) });
  }
  return related({ workload, lengths: (...which) => drawn(cell, ...which), simulate });
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
  if (lengths === undefined) return sampleLengths(shape, seed);
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

function draftingOf(cell: Cell): Pick<IterationOptions, "speculation" | "qualityOf"> {
  const { vanilla, selfAcceptanceLength: own } = cell.workload;
  switch (cell.draft) {
    case "off":
      return { speculation: null, qualityOf: () => 0 };
    case "vanilla": {
      if (vanilla.kind === "model") return { speculation: draftModel(vanilla), qualityOf: () => 0 };
      const quality = qualityFor(own);
      return { speculation: SUFFIXES, qualityOf: () => quality };
    }
    default: {
      const table = qualityTable(own, cell.draft === "own" ? DRAFTER_GAIN : 1);
      return {
        speculation: SUFFIXES,
        qualityOf: (request, reached) => qualityIn(table, request, reached),
      };
    }
  }
}

/** Qualities at 0, 1/4, 2/4 ... references. */
const TABLE_STEP = 0.25;
const REFERENCES_MAX = 64;

function qualityTable(own: number, gain: number): Float64Array {
  return Float64Array.from({ length: REFERENCES_MAX / TABLE_STEP + 1 }, (_, i) =>
    qualityFor(gain * groupedAcceptanceLength(own, i * TABLE_STEP)),
  );
}

/** A sibling counts as far as it has come, up to where the response itself is. */
function qualityIn(table: Float64Array, request: RolloutRequest, reached: Int32Array): number {
  const own = (reached[request.spec.requestId] ?? 0) + 1;
  let references = 0;
  for (const one of request.group.requests) {
    const sibling = reached[one.spec.requestId] ?? 0;
    if (one !== request) references += sibling >= own ? 1 : sibling / own;
  }
  const at = Math.round(Math.min(references, REFERENCES_MAX) / TABLE_STEP);
  return table[at] ?? 0;
}
