// The serving state: whether tokens are generated, and the reason if not. Without it a pause would look like a hang.

import type { WorkerPool } from "../../fleet/pool.ts";
import type { Sidecar } from "../sidecar.ts";

export const SERVING_STATES = [
  "serving",
  "paused",
  "sleeping",
  "updating",
  "draining",
  "no_worker",
] as const;
export type ServingStateName = (typeof SERVING_STATES)[number];

export interface ServingState {
  readonly state: ServingStateName;
  /** Reason for not serving; null: the server serves. */
  readonly reason: string | null;
}

/** The part of WeightUpdates that is needed here. */
export interface Weights {
  readonly isUpdating: boolean;
  readonly isAsleep: boolean;
  pauseState(): { readonly is_paused: boolean; readonly reason: string | null };
}

export function servingState(parts: {
  sidecar: Pick<Sidecar, "isDraining">;
  pool: Pick<WorkerPool, "members">;
  weights: Weights;
}): ServingState {
  const { sidecar, pool, weights } = parts;
  const { is_paused: isPaused, reason } = weights.pauseState();
  if (sidecar.isDraining) {
    return { state: "draining", reason: "it takes no new requests and ends when all are finished" };
  }
  if (weights.isUpdating) return { state: "updating", reason };
  if (weights.isAsleep) {
    return {
      state: "sleeping",
      reason: "POST /sleep freed the engines' memory; POST /wake_up ends it",
    };
  }
  if (isPaused) return { state: "paused", reason: `${reason}; POST /resume ends it` };
  const { members } = pool;
  if (members.some(({ state }) => state === "ready")) return { state: "serving", reason: null };
  const named = members.map(({ source, state }) => `${source.name} is ${state}`).join(", ");
  return { state: "no_worker", reason: named === "" ? "no worker was added" : named };
}
