// How many draft tokens an engine verifies where all requests of a step get the same number: as many as make the most
// tokens in the time that they take. The rule is that of the plugin (native/foretoken_vllm/src/foretoken_vllm/budget.py):
// while nothing pays, drafts are not even made, but for one step now and then.

export interface StepTimes {
  /** Milliseconds of a step that verifies `rows` tokens of `batch` requests, rows >= batch >= 1; equal: a plain step. */
  ms(batch: number, rows: number): number;
}

export interface Offer {
  readonly batch: number;
  /** The sum of their weights: tokens that the step brings without drafts. */
  readonly whole: number;
  /** Weighted tokens that the drafts' tokens at each depth bring, if they are verified. */
  readonly gains: Float64Array;
  /** Milliseconds that the drafts of a step take to make, of late. */
  readonly draftMs: number;
}

export interface DraftPlanner {
  /** A token that is less likely to be accepted is not drafted. */
  readonly probabilityMin: number;
  /** Whether drafts are to be made; once a step. */
  wantsDrafts(): boolean;
  /** Draft tokens of each request that are verified; 0: none. */
  choose(offer: Offer, times: StepTimes): number;
}

/** Least speedup by drafts: a smaller one is lost in the noise of step times and in what drafts take beside the step. */
const GAIN_MIN = 1.1;
/** Steps in a row whose drafts did not pay before drafting is skipped; each time for twice as many steps. */
const SKIP_AFTER = 4;
const SKIPS_MAX = 32;

/** The length that makes the most tokens a millisecond, and how many. */
export function fastest({ batch, whole, gains, draftMs }: Offer, times: StepTimes) {
  let best = { length: 0, speed: whole / times.ms(batch, batch) };
  let tokens = whole;
  for (const [depth, gain] of gains.entries()) {
    if (gain === 0) break;
    tokens += gain;
    const speed = tokens / (draftMs + times.ms(batch, batch * (depth + 2)));
    if (speed > best.speed) best = { length: depth + 1, speed };
  }
  return best;
}

export class AdaptiveLength implements DraftPlanner {
  readonly probabilityMin = 0.06;
  #unpaid = 0;
  /** Steps for which no drafts are made. */
  #skips = 0;

  wantsDrafts(): boolean {
    if (this.#skips === 0) return true;
    this.#skips -= 1;
    return false;
  }

  choose(offer: Offer, times: StepTimes): number {
    const best = fastest(offer, times);
    const least = (GAIN_MIN * offer.whole) / times.ms(offer.batch, offer.batch);
    const length = best.speed > least ? best.length : 0;
    this.#unpaid = length > 0 ? 0 : this.#unpaid + 1;
    if (this.#unpaid >= SKIP_AFTER)
      this.#skips = Math.min(SKIPS_MAX, 2 ** (this.#unpaid - SKIP_AFTER));
    return length;
  }
}

/** Drafts whether it pays or not: to check that drafts change nothing, and to see what the choice saves. */
export class ConstantLength implements DraftPlanner {
  readonly probabilityMin = 0.1;

  wantsDrafts(): boolean {
    return true;
  }

  choose({ gains }: Offer): number {
    return Math.min(8, gains.findLastIndex((gain) => gain > 0) + 1);
  }
}
