// The weights of an epoch as a journal names them, with the operation by which a successor process loads them into an engine
// again. It only reads records, and sends nothing to an engine.

import * as v from "valibot";
import { type WeightEpoch, type WeightsId, weightEpoch, weightsId } from "../base/ids.ts";
import { type EngineOperation, OPERATION } from "../rollout/operation.ts";
import type { SavedRun } from "./read.ts";
import { type EpochRecord, isCount } from "./records.ts";

/** The weights of an epoch: their names, and how an engine gets them. */
export interface HeldWeights {
  readonly epoch: WeightEpoch;
  readonly version: string;
  /** The engines' digest of the weights; null: they report none. */
  readonly weights: WeightsId | null;
  /** The operation that loads the weights. first: engines open with them; unknown: only the trainer has them. */
  readonly base: EngineOperation | "first" | "unknown";
  /** Names of servers that may have other weights. all: an update was under way. Absent: none. */
  readonly doubted?: readonly string[] | "all";
}

export type SavedWeights = HeldWeights & { readonly run: Pick<SavedRun, "epochs"> };

export function isHeldWeights(value: unknown): value is HeldWeights {
  const { epoch, version, weights, base } = Object(value) as Partial<HeldWeights>;
  const isNamed = typeof version === "string" && (weights === null || typeof weights === "string");
  return isCount(epoch) && isNamed && base !== undefined;
}

/** All weights that journals name, by epoch. */
export function savedWeights(saved: readonly SavedWeights[]): HeldWeights[] {
  return saved
    .flatMap(({ run, ...own }) => [heldIn(own), ...run.epochs.map(heldIn)])
    .sort((a, b) => a.epoch - b.epoch);
}

/** The newest weights that a journal names; null: there is no journal. */
export function lastWeights(saved: readonly SavedWeights[]): HeldWeights | null {
  const all = savedWeights(saved);
  const newest = all.at(-1)?.epoch;
  return all.find(({ epoch }) => epoch === newest) ?? null;
}

/** The weights that a record names. Without a base they are the first weights. */
function heldIn({
  epoch,
  version,
  ...others
}: Pick<EpochRecord, "epoch" | "version">): HeldWeights {
  const { weights, base, doubted = [] } = others as { [Key in keyof HeldWeights]?: unknown };
  return {
    epoch: weightEpoch(epoch),
    version,
    weights: typeof weights === "string" ? weightsId(weights) : null,
    base: base === undefined || base === null ? "first" : baseIn(base),
    doubted: Array.isArray(doubted) ? doubted.map(String) : "all",
  };
}

/** Reads a base. One that this version does not know becomes `unknown`. */
export function baseIn(value: unknown): HeldWeights["base"] {
  if (value === "first") return value;
  const { success, output } = v.safeParse(OPERATION, value);
  return success ? output : "unknown";
}
