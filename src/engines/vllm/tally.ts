// A worker's statistics: its own counts; the increase of the server's metrics since it was opened (a worker whose server
// restarts has failed, so they are of one process); and the requests that moved here from another server, by what the
// server's connector found in the pool.

import type { RequestId } from "../../core/base/ids.ts";
import type { WorkerStats } from "../../core/rollout/worker.ts";
import type { ChunkRun } from "./chunk-run.ts";
import { hasRestarted, mapCounters, type ServerMetrics } from "./metrics.ts";
import type { EventUsage } from "./stream-event.ts";

/** Remembered requests. A forgotten request that stays counts as one that moved here. */
const KNOWN_MAX = 65_536;

export class ServerTally {
  readonly #kvTokens: number;
  readonly #base: ServerMetrics;
  #latest: ServerMetrics;
  /** null: the server has no connector that finds KV of other servers. */
  readonly #connector: string | null;
  readonly #moves = { moves: 0, movedTokens: 0, recomputedMoves: 0, recomputedTokens: 0 };
  /** Leading tokens of each request that this server has computed; least recently updated first. */
  readonly #computed = new Map<RequestId, number>();
  #outputTokens = 0;
  #prefillTokens = 0;
  #recomputedTokens = 0;
  #busyMs = 0;
  #busySinceMs: number | null = null;

  constructor(metrics: ServerMetrics, kvTokens: number, connector: string | null) {
    this.#latest = metrics;
    this.#base = metrics;
    this.#kvTokens = kvTokens;
    this.#connector = connector;
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
  used(run: ChunkRun, usage: EventUsage): void {
    const computed = Math.max(0, usage.promptTokens - (usage.cachedTokens ?? 0));
    this.#prefillTokens += computed;
    // The last output token has no KV anywhere: computing it repeats nothing.
    const fresh = run.computedBefore === 0 ? computed : 1;
    this.#recomputedTokens += Math.max(0, computed - fresh);
    if (this.#connector !== null) this.#moved(run, usage);
  }

  #moved(run: ChunkRun, { promptTokens, cachedTokens }: EventUsage): void {
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
    const moves = this.#moves;
    if (movedTokens > 0) {
      moves.moves += 1;
      moves.movedTokens += movedTokens;
    } else {
      moves.recomputedMoves += 1;
      moves.recomputedTokens += Math.max(0, promptTokens - cachedTokens);
    }
  }

  forget(requestId: RequestId): void {
    this.#computed.delete(requestId);
  }

  /** Forgets computed tokens, because the weights have changed. */
  clear(): void {
    this.#computed.clear();
  }

  /** Records that the first stream opens, or the last one ends. */
  busy(isBusy: boolean, nowMs: number): void {
    if (this.#busySinceMs !== null) this.#busyMs += nowMs - this.#busySinceMs;
    this.#busySinceMs = isBusy ? nowMs : null;
  }

  stats(): WorkerStats {
    const { running, waiting, kvUsage, counters } = this.#latest;
    const base = this.#base.counters;
    const since = mapCounters((key) => Math.max(0, counters[key] - base[key]));
    const connector = this.#connector;
    const kvMoves = connector !== null && {
      ...this.#moves,
      connector,
      hitTokens: since.externalHitTokens,
      failedBlocks: since.poolFailedBlocks,
      poolSeconds: since.poolSeconds,
    };
    return {
      running,
      waiting,
      kvTokensUsed: Math.round(kvUsage * this.#kvTokens),
      steps: since.steps,
      busyMs: this.#busyMs,
      draftMs: 0,
      outputTokens: this.#outputTokens,
      prefillTokens: this.#prefillTokens,
      recomputedTokens: this.#recomputedTokens,
      preemptions: since.preemptions,
      draftedTokens: since.draftedTokens,
      acceptedTokens: since.acceptedTokens,
      drafts: since.drafts,
      kvLoads: 0,
      kvLoadFailures: 0,
      ...(kvMoves && { kvMoves }),
    };
  }
}
