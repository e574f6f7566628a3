// Data parallel ranks of one server: each is an engine with slots, KV and a prefix cache of its own. A request is pinned
// to a rank, and goes on where its prefix is while there is room; the server would put each chunk anywhere.

import type { RequestId } from "../../core/base/ids.ts";
import type { ChunkRun } from "./chunk-run.ts";

export interface RankCapacity {
  readonly slots: number;
  readonly kvTokens: number;
}

/** Runs beyond a rank's slots, which wait in its queue (VllmWorker.capacity.ahead). */
const SLOTS_PER_AHEAD = 8;
/** KV that a run needs beyond what it has when it begins: it is preempted in its rank, not lost, if that was too little. */
const AHEAD_TOKENS = 256;

interface Rank {
  readonly runs: Set<ChunkRun>;
  readonly runsMax: number;
  readonly kvTokens: number;
}

export class Ranks {
  readonly #ranks: readonly Rank[];
  /** Rank that holds the prefix of each waiting or running request. */
  readonly #homes = new Map<RequestId, number>();

  constructor(capacities: readonly RankCapacity[]) {
    this.#ranks = capacities.map(({ slots, kvTokens }) => ({
      runs: new Set(),
      runsMax: slots + Math.ceil(slots / SLOTS_PER_AHEAD),
      kvTokens,
    }));
  }

  /** Gives the run a rank; null: none has room, and it must wait for another run to end. */
  place(run: ChunkRun): number | null {
    const { requestId } = run.spec;
    const home = this.#homes.get(requestId);
    const rank = home !== undefined && this.#hasRoom(home, run) ? home : this.#freest(run);
    if (rank === null) return null;
    this.#homes.set(requestId, rank);
    this.#ranks[rank]?.runs.add(run);
    return rank;
  }

  /** Records that a run's stream is over; its prefix stays on the rank. */
  left(run: ChunkRun): void {
    const home = this.#homes.get(run.spec.requestId);
    if (home !== undefined) this.#ranks[home]?.runs.delete(run);
  }

  /** Forgets the rank of a request that has ended. */
  forget(requestId: RequestId): void {
    this.#homes.delete(requestId);
  }

  /** The weights have changed: no prefix is of use. Runs have left before. */
  clear(): void {
    this.#homes.clear();
  }

  /** Share of the KV that its runs have. */
  #load({ runs, kvTokens }: Rank): number {
    let tokens = 0;
    for (const run of runs) tokens += contextOf(run);
    return tokens / kvTokens;
  }

  #hasRoom(index: number, run: ChunkRun): boolean {
    const rank = this.#ranks[index];
    if (rank === undefined || rank.runs.size >= rank.runsMax) return false;
    if (rank.runs.size === 0) return true;
    return this.#load(rank) + (contextOf(run) + AHEAD_TOKENS) / rank.kvTokens <= 1;
  }

  /**
   * The least loaded rank, by the used share of its slots first: KV in use says little while most responses are short.
   */
  #freest(run: ChunkRun): number | null {
    let best: number | null = null;
    let least = Number.POSITIVE_INFINITY;
    for (const [index, rank] of this.#ranks.entries()) {
      if (!this.#hasRoom(index, run)) continue;
      const load = rank.runs.size / rank.runsMax + this.#load(rank);
      if (load >= least) continue;
      best = index;
      least = load;
    }
    return best;
  }
}

function contextOf({ spec, offset }: ChunkRun): number {
  return spec.prompt.length + offset;
}
