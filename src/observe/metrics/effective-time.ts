// The effective training time ratio (ETTR) of rollouts: the share of the time that went into tokens which were kept.
// Kokolis et al. (arXiv 2410.21680) define it for training jobs as productive time over wall time; ByteRobust (arXiv
// 2509.16293) and RobustRL (arXiv 2512.22492) report it too. For a rollout over several engines it is here
//
//   engine time in which an engine served ÷ engine time, of all engines, while responses were unfinished
//   × tokens that were kept ÷ tokens that were generated
//
// So it contains waiting for restarts and recovery (an engine that is down, cut off or fenced does not serve), and tokens
// that were generated again.

export interface EnginesInService {
  readonly serving: number;
  readonly size: number;
}

export class EngineTime {
  #atMs = 0;
  /** Number of engines now; null: nothing is to be generated. */
  #engines: EnginesInService | null = null;
  #wallMs = 0;
  #engineMs = 0;
  #servedMs = 0;

  /** Sets the number of engines from `nowMs` on; null: nothing is to be generated, and the time does not count. */
  at(nowMs: number, engines: EnginesInService | null): void {
    if (this.#engines !== null) {
      const ms = nowMs - this.#atMs;
      this.#wallMs += ms;
      this.#engineMs += ms * this.#engines.size;
      this.#servedMs += ms * this.#engines.serving;
    }
    this.#atMs = nowMs;
    this.#engines = engines;
  }

  /** Time in which something was to be generated. */
  get wallMs(): number {
    return this.#wallMs;
  }

  /** Engine time in service, summed over all engines. */
  get servedMs(): number {
    return this.#servedMs;
  }

  get awayMs(): number {
    return this.#engineMs - this.#servedMs;
  }

  /** The ratio; 1 if nothing was to be generated yet. `again`: tokens that were generated and not kept. */
  ettr({ kept, again }: { readonly kept: number; readonly again: number }): number {
    if (this.#engineMs === 0) return 1;
    const share = kept + again === 0 ? 1 : kept / (kept + again);
    return (this.#servedMs / this.#engineMs) * share;
  }
}
