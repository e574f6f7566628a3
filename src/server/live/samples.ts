// An iteration over time, in a bounded number of samples: when they are full, every second one is dropped and the
// next ones come half as often. What a page shows of the iteration survives a reload.

import type { Progress } from "../../core/rollout/report.ts";

export const SAMPLES_MAX = 1200;

export class Samples {
  #samples: Progress[] = [];
  /** Interval of kept samples: one in `#every`. */
  #every = 1;
  #offered = 0;

  /** Drops samples of another iteration. */
  keepOnly(iteration: number): void {
    if (this.#samples[0]?.iteration === iteration) return;
    this.#samples = [];
    this.#every = 1;
    this.#offered = 0;
  }

  add(progress: Progress): void {
    this.#offered += 1;
    if ((this.#offered - 1) % this.#every !== 0) return;
    this.#samples.push(progress);
    if (this.#samples.length < SAMPLES_MAX) return;
    this.#samples = this.#samples.filter((_, i) => i % 2 === 0);
    this.#every *= 2;
  }

  /** Samples in columns for the page: all, or about `max` at equal distances. */
  columns(max = SAMPLES_MAX) {
    const every = Math.ceil(this.#samples.length / max);
    const samples = this.#samples.filter((_, i) => i % every === 0);
    return {
      at_s: samples.map(({ elapsedS }) => rounded(elapsedS)),
      tail: samples.map(({ isTail }) => isTail),
      tokens_per_s: samples.map(({ tokensPerS }) => Math.round(tokensPerS)),
      eta_low_s: samples.map(({ etaLowS }) => etaLowS && rounded(etaLowS)),
      eta_high_s: samples.map(({ etaHighS }) => etaHighS && rounded(etaHighS)),
    };
  }
}

/** A number of seconds or a share, as people read it. */
export function rounded(value: number): number {
  return Math.round(value * 1000) / 1000;
}
