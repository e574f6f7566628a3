// What clients know the weights of an epoch by: the trainer's own name for them, or the epoch's number.

import type { WeightEpoch } from "../../core/base/ids.ts";

/** Names kept, at most: responses in flight span few epochs. */
const NAMES_MAX = 1024;

export class WeightNames {
  readonly #names = new Map<WeightEpoch, string>();

  of(epoch: WeightEpoch): string {
    return this.#names.get(epoch) ?? String(epoch);
  }

  /** The trainer's own; null: it gave none. */
  given(epoch: WeightEpoch): string | null {
    return this.#names.get(epoch) ?? null;
  }

  /** null: the epoch keeps its number. */
  give(epoch: WeightEpoch, name: string | null): void {
    if (name === null) return;
    this.#names.set(epoch, name);
    for (const old of this.#names.keys()) {
      if (this.#names.size <= NAMES_MAX) return;
      this.#names.delete(old);
    }
  }
}
