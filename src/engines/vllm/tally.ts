// A worker's statistics: its own counts; the increase of the server's metrics since it was opened (a worker whose server
// restarts has failed, so they are of one process); and the requests that moved here from another server, by what the
// server's connector found in the pool.

import type { RequestId } from "../../core/base/ids.ts";
import type { KvMoveStats, WorkerStats } from "../../core/rollout/worker.ts";
import type { ChunkRun } from "./chunk-run.ts";
import { hasRestarted, mapCounters, type ServerCounters, type ServerMetrics } from "./metrics.ts";
import type { EventUsage } from "./stream-event.ts";

/** Remembered requests. A forgotten request that stays counts as one that moved here. */
const KNOWN_MAX = 65_536;

export class KvMoves {
  readonly #connector: string;
  /** Leading tokens of each request that this server has computed; least recently updated first. */
  readonly #computed = new Map<RequestId, number>();
  #moves = 0;
  #movedTokens = 0;
  #recomputedMoves = 0;
  #recomputedTokens = 0;

  constructor(connector: string) {
    this.#connector = connector;
  }

  /** Counts an attempt that has ended, by the number of cached tokens that the server reports for it. */
  used(run: ChunkRun, { promptTokens, cachedTokens }: EventUsage): void {
    const { requestId, prompt } = run.spec;
    const computed = this.#computed.get(requestId) ?? 0;
    this.#computed.delete(requestId);
    this.#computed.set(requestId, promptTokens + run.made);
    for (const oldest of this.#computed.keys()) {
      if (this.#computed.size <= KNOWN_MAX) break;
      this.#computed.delete(oldest);
    }
    // The last token's KV does not exist yet. Tokens of an earlier attempt were generated here.
    const hasMoved = run.computedBefore > 0 && run.attempt === 0 && computed < promptTokens - 1;
    if (!hasMoved || cachedTokens === null) return;
    // The prompt may be in the cache because of a sibling.
    const movedTokens = cachedTokens - Math.max(computed, prompt.length);
    if (movedTokens > 0) {
      this.#moves += 1;
      this.#movedTokens += movedTokens;
    } else {
      this.#recomputedMoves += 1;
      this.#recomputedTokens += Math.max(0, promptTokens - cachedTokens);
    }
  }

  forget(requestId: RequestId): void {
    this.#computed.delete(requestId);
  }

  /** Forgets computed tokens, because the weights have changed. */
  clear(): void {
    this.#computed.clear();
  }

  stats({ externalHitTokens, poolFailedBlocks, poolSeconds }: ServerCounters): KvMoveStats {
    return {
      connector: this.#connector,
      moves: this.#moves,
      movedTokens: this.#movedTokens,
      recomputedMoves: this.#recomputedMoves,
      recomputedTokens: this.#recomputedTokens,
      hitTokens: externalHitTokens,
      failedBlocks: poolFailedBlocks,
      poolSeconds,
    };
  }
}

export class ServerTally {
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

  /** Takes new metrics; false: the server's process is another than before, and they are ignored. */
  metrics(metrics: ServerMetrics): boolean {
    if (hasRestarted(this.#latest, metrics)) return false;
    this.#latest = metrics;
    return true;
  }

  generated(tokens: number): void {
    this.#outputTokens += tokens;
  }

  /**
   * Counts the computed part of an attempt's prompt: all but the cached tokens. Without a report, the whole prompt
   * counts.
   */
  prefilled(run: ChunkRun, usage: EventUsage): void {
    const computed = Math.max(0, usage.promptTokens - (usage.cachedTokens ?? 0));
    this.#prefillTokens += computed;
    // The last output token has no KV anywhere: computing it repeats nothing.
    const fresh = run.computedBefore === 0 ? computed : 1;
    this.#recomputedTokens += Math.max(0, computed - fresh);
  }

  /** Records that the first stream opens, or the last one ends. */
  busy(isBusy: boolean, nowMs: number): void {
    if (this.#busySinceMs !== null) this.#busyMs += nowMs - this.#busySinceMs;
    this.#busySinceMs = isBusy ? nowMs : null;
  }

  /** `moves` null: the server has no connector. */
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
