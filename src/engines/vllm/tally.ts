// What a worker reports of itself: its own counts, and what the server's metrics have gone up by since it was
// opened. Both are of one process: a worker whose server restarts has failed.

import type { WorkerStats } from "../../core/rollout/worker.ts";
import type { ChunkRun } from "./chunk-run.ts";
import type { EventUsage } from "./event.ts";
import type { KvMoves } from "./kv-moves.ts";
import { hasRestarted, mapCounters, type ServerCounters, type ServerMetrics } from "./metrics.ts";

export class Tally {
  #latest: ServerMetrics;
  readonly #base: ServerCounters;
  #outputTokens = 0;
  #prefillTokens = 0;
  #recomputedTokens = 0;
  #busyMs = 0;
  #busySinceMs: number | null = null;

  constructor(metrics: ServerMetrics) {
    this.#latest = metrics;
    this.#base = metrics.counters;
  }

  /** false: they are of another process than those before, and not taken. */
  metrics(metrics: ServerMetrics): boolean {
    if (hasRestarted(this.#latest, metrics)) return false;
    this.#latest = metrics;
    return true;
  }

  made(tokens: number): void {
    this.#outputTokens += tokens;
  }

  /** An attempt's prompt was computed but for what was cached. Without a report, all of it counts as computed. */
  prefilled(run: ChunkRun, usage: EventUsage): void {
    const computed = Math.max(0, usage.promptTokens - (usage.cachedTokens ?? 0));
    this.#prefillTokens += computed;
    // The last output token has no KV anywhere: computing it repeats nothing.
    const fresh = run.computedBefore === 0 ? computed : 1;
    this.#recomputedTokens += Math.max(0, computed - fresh);
  }

  /** Streams are open from now on, or none is any more. */
  busy(isBusy: boolean, nowMs: number): void {
    if (this.#busySinceMs !== null) this.#busyMs += nowMs - this.#busySinceMs;
    this.#busySinceMs = isBusy ? nowMs : null;
  }

  /** `moves` null: it has no connector. */
  stats(kvTokens: number, moves: KvMoves | null): WorkerStats {
    const counters = this.#sinceOpened();
    return {
      running: this.#latest.running,
      waiting: this.#latest.waiting,
      kvTokensUsed: Math.round(this.#latest.kvUsage * kvTokens),
      steps: counters.steps,
      busyMs: this.#busyMs,
      draftMs: 0,
      outputTokens: this.#outputTokens,
      prefillTokens: this.#prefillTokens,
      recomputedTokens: this.#recomputedTokens,
      preemptions: counters.preemptions,
      draftedTokens: counters.draftedTokens,
      acceptedTokens: counters.acceptedTokens,
      drafts: counters.drafts,
      kvLoads: 0,
      kvLoadFailures: 0,
      ...(moves === null ? {} : { kvMoves: moves.stats(counters) }),
    };
  }

  #sinceOpened(): ServerCounters {
    const { counters } = this.#latest;
    return mapCounters((key) => Math.max(0, counters[key] - this.#base[key]));
  }
}
