// The weights that were in service when an earlier process ended, and the record of today's weights for the next one.

import {
  type HeldWeights,
  lastWeights,
  type SavedWeights,
  savedWeights,
} from "../core/journal/held-weights.ts";
import type { WorkerPool } from "../fleet/pool.ts";
import type { WeightUpdates } from "../fleet/updates.ts";
import type { RunJournals } from "../host/journal-file.ts";
import type { Sidecar } from "../server/sidecar.ts";

/** Parts that know the weights in service. */
interface Source {
  readonly sidecar: Sidecar;
  readonly pool: WorkerPool;
  readonly weights: WeightUpdates;
}

export class KeptWeights {
  /** The weights of the newest known epoch; null: this process is the first. */
  readonly before: HeldWeights | null;
  readonly #file: RunJournals["weights"] | null;
  readonly #saved: readonly SavedWeights[];

  /** `journaled`: weights in the journals of requests and rollouts. */
  constructor(file: RunJournals["weights"] | null, journaled: readonly SavedWeights[]) {
    this.#file = file;
    const held = file?.held ?? null;
    // The first record of an epoch counts: the weights file's, as journals of runs do not know what became of the engines.
    const own = held === null ? [] : [{ ...held, run: { epochs: [] } }];
    this.#saved = [...own, ...journaled];
    this.before = lastWeights(this.#saved);
  }

  /** Restores names and state of the weights. Call it before any engine is opened. */
  restore({ pool, weights }: Source, failed: (error: unknown) => void): void {
    const held = this.#file?.held ?? null;
    pool.agreement.restore(held?.canaries, held?.epoch === this.before?.epoch);
    for (const { epoch, version } of savedWeights(this.#saved)) {
      // A number is no name that the trainer gave.
      if (version !== String(epoch)) weights.name(epoch, version);
    }
    // It resolves at once, as nothing runs.
    weights.restore(held?.isAwake ?? null, held?.isOpen === true).catch(failed);
  }

  /** Writes the weights in service for the next process, if there is a journal. Resolves when they are on disk. */
  async write(source: Source): Promise<void> {
    const { sidecar, pool, weights } = source;
    if (this.#file === null) return;
    const canaries = pool.agreement.stateIn(sidecar.rollout.epoch);
    const { isAwake } = pool;
    await this.#file.write({ ...heldWeights(source), canaries, isAwake, isOpen: weights.isOpen });
  }
}

/** The weights in service, for journals. */
export function heldWeights({ sidecar, pool, weights }: Source): HeldWeights {
  const { epoch } = sidecar.rollout;
  const now = { epoch, version: weights.version(epoch), ...pool.held };
  if (!weights.isUpdating) return now;
  return { ...now, base: now.base === "first" ? "unknown" : now.base, doubted: "all" };
}
