// Estimates for sessions: the time between turns, the share that comes back, and the tokens that a turn adds. New sessions
// are admitted by the growth, and KV is kept by the time between turns, which is a tool's time in most cases.
// KV of C tokens that is kept for a time t costs C t; dropped, it is computed again in C rows, for which all M tokens of
// the worker's KV wait: C M times the time of a row. So C does not matter, and a pause may last as long as
// the worker needs to compute all of its KV.

/** Gaps that count, at most; and at least, before they do. */
const GAPS_KEPT = 64;
const GAPS_KNOWN = 4;
/** Pauses for each known gap that do not end: those after a session's last turn. */
const ENDS_PART = 1 / 8;
/** Turns of growth for which there must be room; with three, long sessions begin so late that they make a tail. */
const TURNS_AHEAD = 2;
/** Tokens of a turn, where none is known. */
const TURN_TOKENS = 64;
/** Turns that are remembered; and as many that came back before anything was known. */
const TURNS_KEPT = 256;
const TURNS_PRIOR = 4;
/** Time in which a worker computes its KV, where it is not known. */
const RECOMPUTE_MS = 2_000;

export class Returns {
  /** Gaps between turns, ms; a ring. */
  readonly #gaps: number[] = [];
  #next = 0;
  #sorted: number[] | null = null;

  #ended = TURNS_PRIOR;
  #back = TURNS_PRIOR;
  /** Tokens by which the sessions that came back have grown in a turn; 0: not known. */
  #turnTokens = 0;

  /** A turn is over, and may have a next one. */
  ended(): void {
    this.#ended += 1;
    if (this.#ended < TURNS_KEPT) return;
    this.#ended /= 2;
    this.#back /= 2;
  }

  /** Tokens by which a session is expected to grow yet. */
  get growthTokens(): number {
    const part = Math.min(1, this.#back / this.#ended);
    return TURNS_AHEAD * part * (this.#turnTokens || TURN_TOKENS);
  }

  /** A session has come back after so long, with so many tokens more than before. */
  came(gapMs: number, tokens: number): void {
    this.#back += 1;
    const before = this.#turnTokens || tokens;
    this.#turnTokens = before + (tokens - before) / GAPS_KEPT;
    this.#gaps[this.#next] = gapMs;
    this.#next = (this.#next + 1) % GAPS_KEPT;
    this.#sorted = null;
  }

  /**
   * How long a pause may last before its KV goes to others. `recomputeMs`: time in which the worker would compute all of
   * its KV; NaN: not known. `cost`: of getting KV back, as a part of that.
   */
  keepMs(recomputeMs: number, cost: number): number {
    const worthMs = cost * (Number.isNaN(recomputeMs) ? RECOMPUTE_MS : recomputeMs);
    const gaps = this.#sorted ?? this.#gaps.toSorted((a, b) => a - b);
    this.#sorted = gaps;
    if (gaps.length < GAPS_KNOWN) return worthMs;
    let bestMs = 0;
    let least = gaps.length * worthMs;
    let before = 0;
    for (const [i, gapMs] of gaps.entries()) {
      before += gapMs;
      const after = gaps.length - 1 - i;
      const cost = before + after * (gapMs + worthMs) + ENDS_PART * gaps.length * gapMs;
      if (cost > least) continue;
      least = cost;
      bestMs = gapMs;
    }
    return Math.min(bestMs, worthMs);
  }
}
