// An iteration over time, in a bounded number of samples: when they are full, every second one is dropped and the
// next ones come half as often. What a page shows of the iteration survives a reload.

import type { Progress } from "../../core/rollout/report.ts";

export interface WorkerSample {
  readonly running: number;
  /** 0 to 1. */
  readonly kv: number;
}

export interface Sample {
  readonly atS: number;
  readonly isTail: boolean;
  readonly tokensPerS: number;
  readonly etaLowS: number | null;
  readonly etaHighS: number | null;
  readonly workers: ReadonlyMap<number, WorkerSample>;
}

export const SAMPLES_MAX = 1200;

export class Samples {
  #samples: Sample[] = [];
  /** Takes one of so many. */
  #every = 1;
  #offered = 0;

  get all(): readonly Sample[] {
    return this.#samples;
  }

  clear(): void {
    this.#samples = [];
    this.#every = 1;
    this.#offered = 0;
  }

  add(progress: Progress): void {
    this.#offered += 1;
    if ((this.#offered - 1) % this.#every !== 0) return;
    this.#samples.push({
      atS: progress.elapsedS,
      isTail: progress.isTail,
      tokensPerS: progress.tokensPerS,
      etaLowS: progress.etaLowS,
      etaHighS: progress.etaHighS,
      workers: new Map(
        progress.workers.map(({ worker, running, kvTokensUsed, kvTokens }) => [
          worker,
          { running, kv: kvTokens === 0 ? 0 : kvTokensUsed / kvTokens },
        ]),
      ),
    });
    if (this.#samples.length < SAMPLES_MAX) return;
    this.#samples = this.#samples.filter((_, i) => i % 2 === 0);
    this.#every *= 2;
  }

  /** Share of the estimates after a fifth of the time that held the end; null: there are none. */
  etaInside(endS: number): number | null {
    let [inside, all] = [0, 0];
    for (const { atS, etaLowS, etaHighS } of this.#samples) {
      if (atS < endS / 5 || etaLowS === null || etaHighS === null) continue;
      all += 1;
      if (atS + etaLowS <= endS && endS <= atS + etaHighS) inside += 1;
    }
    return all === 0 ? null : inside / all;
  }

  /** In columns, as the page takes them: all, or about `max` of them at equal distances. */
  columns(max = SAMPLES_MAX) {
    const every = Math.ceil(this.#samples.length / max);
    const samples = this.#samples.filter((_, i) => i % every === 0);
    const workers: Record<string, { running: (number | null)[]; kv: (number | null)[] }> = {};
    const ids = new Set(samples.flatMap((sample) => [...sample.workers.keys()]));
    for (const id of ids) {
      const of = samples.map((sample) => sample.workers.get(id));
      workers[id] = {
        running: of.map((one) => one?.running ?? null),
        kv: of.map((one) => (one === undefined ? null : rounded(one.kv))),
      };
    }
    return {
      at_s: samples.map(({ atS }) => rounded(atS)),
      tail: samples.map(({ isTail }) => isTail),
      tokens_per_s: samples.map(({ tokensPerS }) => Math.round(tokensPerS)),
      eta_low_s: samples.map(({ etaLowS }) => etaLowS && rounded(etaLowS)),
      eta_high_s: samples.map(({ etaHighS }) => etaHighS && rounded(etaHighS)),
      workers,
    };
  }
}

function rounded(value: number): number {
  return Math.round(value * 1000) / 1000;
}
