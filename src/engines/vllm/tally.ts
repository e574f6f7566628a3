// Statistics that a worker reports: its own counts, and what the server's metrics have gone up by since it was opened (of one
// process: a worker whose server restarts has failed); and the requests that came from another server, by the server's
// report of what its connector found in the pool.

import type { RequestId } from "../../core/base/ids.ts";
import type { KvMoveStats, WorkerStats } from "../../core/rollout/worker.ts";
import type { ChunkRun } from "./chunk-run.ts";
import { hasRestarted, mapCounters, type ServerCounters, type ServerMetrics } from "./metrics.ts";
import type { EventUsage } from "./stream-event.ts";

/** Requests that are remembered; of one that is forgotten, a chunk that stayed counts as one that came. */
const KNOWN_MAX = 65_536;

export class KvMoves {
  readonly #connector: string;
  /** Tokens of each request's text that this server has computed; least recently updated first. */
  readonly #here = new Map<RequestId, number>();
  #moves = 0;
  #movedTokens = 0;
  #recomputedMoves = 0;
  #recomputedTokens = 0;

  constructor(connector: string) {
    this.#connector = connector;
  }

  /** An attempt at a chunk has ended, and the server has reported how much of its text it found. */
  used(run: ChunkRun, { promptTokens, cachedTokens }: EventUsage): void {
    const { requestId, prompt } = run.spec;
    const here = this.#here.get(requestId) ?? 0;
    this.#here.delete(requestId);
    this.#here.set(requestId, promptTokens + run.made);
    for (const oldest of this.#here.keys()) {
      if (this.#here.size <= KNOWN_MAX) break;
      this.#here.delete(oldest);
    }
    // The last token's KV does not exist yet. Tokens of an earlier attempt were generated here.
    const hasCome = run.computedBefore > 0 && run.attempt === 0 && here < promptTokens - 1;
    if (!hasCome || cachedTokens === null) return;
    // The prompt may be there for a sibling.
    const found = cachedTokens - Math.max(here, prompt.length);
    if (found > 0) {
      this.#moves += 1;
      this.#movedTokens += found;
    } else {
      this.#recomputedMoves += 1;
      this.#recomputedTokens += Math.max(0, promptTokens - cachedTokens);
    }
  }

  /** The request is done with. */
  forget(requestId: RequestId): void {
    this.#here.delete(requestId);
  }

  /** Forgets computed tokens, because the weights have changed. */
  clear(): void {
    this.#here.clear();
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

  /** false: they are of another process than those before, and not taken. */
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
