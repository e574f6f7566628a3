// Counts the requests that came to one server from another, by the server's report: whether its connector found
// their KV in the pool. It only counts; servers find their KV without it.

import type { RequestId } from "../../core/base/ids.ts";
import type { KvMoveStats } from "../../core/rollout/worker.ts";
import type { ChunkRun } from "./chunk-run.ts";
import type { EventUsage } from "./event.ts";
import type { ServerCounters } from "./metrics.ts";

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

  /** Nothing that was computed is of use: the weights have changed. */
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
