// What became of requests that moved to or from one server, as WorkerStats tells of it. It only counts.

import type { KvMoveStats } from "../../rollout/worker.ts";

export class MoveCounts {
  readonly #connector: string;
  #moves = 0;
  #movedTokens = 0;
  #misses = 0;
  #recomputedMoves = 0;
  #recomputedTokens = 0;
  #publishes = 0;
  #publishedTokens = 0;
  #publishMs = 0;

  constructor(connector: string) {
    this.#connector = connector;
  }

  /** Its KV was found: `saved` tokens were not computed. */
  arrived(saved: number): void {
    this.#moves += 1;
    this.#movedTokens += saved;
  }

  /** Its KV was to be there and was not found. */
  missed(tokens: number): void {
    this.#misses += 1;
    this.recomputes(tokens);
  }

  /** It came without KV: so many tokens are computed again. */
  recomputes(tokens: number): void {
    this.#recomputedMoves += 1;
    this.#recomputedTokens += tokens;
  }

  published(tokens: number, ms: number): void {
    this.#publishes += 1;
    this.#publishedTokens += tokens;
    this.#publishMs += ms;
  }

  /** `hitTokens`: by the server's own counter. */
  stats(hitTokens: number): KvMoveStats {
    return {
      connector: this.#connector,
      moves: this.#moves,
      movedTokens: this.#movedTokens,
      misses: this.#misses,
      recomputedMoves: this.#recomputedMoves,
      recomputedTokens: this.#recomputedTokens,
      publishes: this.#publishes,
      publishedTokens: this.#publishedTokens,
      publishMs: this.#publishMs,
      hitTokens,
    };
  }
}
