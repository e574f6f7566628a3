// What an engine step costs on this machine: a short measurement at start, interpolated afterwards. The
// draft planner decides with it; nothing else may depend on it, because times differ from run to run.

import { assert } from "../../core/base/assert.ts";

/** One measured step: `batch` sequences with `rows` token rows in all. */
export interface StepSample {
  readonly batch: number;
  readonly rows: number;
  readonly ms: number;
}

/** Cost of a step and of a tree's branch. */
export interface StepCost {
  /** Milliseconds of a step of `batch` sequences and `rows` rows, rows >= batch >= 1. */
  ms(batch: number, rows: number): number;
  /** Milliseconds to copy the KV of `tokens` tokens into one more stream. */
  branchMs(tokens: number): number;
}

interface Curve {
  readonly batch: number;
  /** Rows per sequence, ascending, with the time of each. */
  readonly perSequence: readonly number[];
  readonly ms: readonly number[];
}

export class ProfiledStepCost implements StepCost {
  readonly #curves: readonly Curve[];
  /** Of a row more where a batch was measured with a single draft length. */
  readonly #msPerRow: number;
  readonly #branchMsPerToken: number;

  /** `samples` hold at least one step without drafts. */
  constructor(samples: readonly StepSample[], branchMsPerToken: number) {
    assert(samples.length > 0, "a profile has samples");
    const batches = [...new Set(samples.map((sample) => sample.batch))].sort((a, b) => a - b);
    this.#curves = batches.map((batch) => {
      const mine = samples.filter((s) => s.batch === batch).sort((a, b) => a.rows - b.rows);
      return { batch, perSequence: mine.map((s) => s.rows / batch), ms: rising(mine) };
    });
    this.#branchMsPerToken = branchMsPerToken;
    const ends = samples.toSorted((a, b) => a.rows - b.rows);
    const first = ends[0] as StepSample;
    const last = ends.at(-1) as StepSample;
    const span = last.rows - first.rows;
    this.#msPerRow = span > 0 ? Math.max(0, last.ms - first.ms) / span : first.ms / first.rows;
  }

  ms(batch: number, rows: number): number {
    const perSequence = rows / batch;
    const above = this.#curves.findIndex((curve) => curve.batch >= batch);
    const high = this.#curves[above < 0 ? this.#curves.length - 1 : above] as Curve;
    const highMs = this.#along(high, perSequence);
    if (above < 0) return (highMs * batch) / high.batch;
    if (above === 0 || high.batch === batch) return highMs;
    const low = this.#curves[above - 1] as Curve;
    const lowMs = this.#along(low, perSequence);
    return lowMs + ((highMs - lowMs) * (batch - low.batch)) / (high.batch - low.batch);
  }

  branchMs(tokens: number): number {
    return tokens * this.#branchMsPerToken;
  }

  #along(curve: Curve, perSequence: number): number {
    const { perSequence: xs, ms } = curve;
    const last = xs.length - 1;
    if (last === 0) {
      const extra = Math.max(0, perSequence - (xs[0] as number)) * curve.batch;
      return (ms[0] as number) + extra * this.#msPerRow;
    }
    let i = 1;
    while (i < last && (xs[i] as number) < perSequence) i += 1;
    const x0 = xs[i - 1] as number;
    const y0 = ms[i - 1] as number;
    const slope = ((ms[i] as number) - y0) / ((xs[i] as number) - x0);
    return y0 + Math.max(0, perSequence - x0) * slope;
  }
}

/**
 * A step moves what was learned by this part at most, however long it took: the estimate is near the median, and other load
 * on the machine, which lengthens some steps, does not move it as it would a mean. Some hundred steps decide.
 */
const LEARNING_RATE = 0.02;
/** No step counts for more in the error: other load makes some take many times as long. */
const ERROR_MAX = 1;

/**
 * The profile, corrected by the steps that really run. They differ from it: attention gets dearer as
 * responses grow, and drafts of unequal lengths need more graphs than the equal ones that were measured.
 */
export class LearnedStepCost implements StepCost {
  readonly #profile: StepCost;
  /** Real over profiled time: of plain steps, and of what draft rows add to them. */
  #plain = 1;
  #extra = 1;
  /** How far steps took of late from what was expected of them, as a part of that. */
  error = 0;

  constructor(profile: StepCost) {
    this.#profile = profile;
  }

  ms(batch: number, rows: number): number {
    const plainMs = this.#profile.ms(batch, batch);
    return plainMs * this.#plain + (this.#profile.ms(batch, rows) - plainMs) * this.#extra;
  }

  branchMs(tokens: number): number {
    return this.#profile.branchMs(tokens);
  }

  /** A step of decoding requests alone took `ms`. */
  observe(batch: number, rows: number, ms: number): void {
    const plainMs = this.#profile.ms(batch, batch);
    if (ms <= 0 || plainMs <= 0) return;
    const deviation = Math.abs(ms / this.ms(batch, rows) - 1);
    this.error += LEARNING_RATE * (Math.min(ERROR_MAX, deviation) - this.error);
    if (rows === batch) {
      this.#plain = learn(this.#plain, ms / plainMs);
      return;
    }
    const extraMs = this.#profile.ms(batch, rows) - plainMs;
    if (extraMs <= 0) return;
    this.#extra = learn(this.#extra, (ms - plainMs * this.#plain) / extraMs);
  }
}

function learn(factor: number, seen: number): number {
  const most = LEARNING_RATE * factor;
  return factor + Math.min(most, Math.max(-most, seen - factor));
}

/** More rows cannot take less time: a dip is noise, and would make drafts look free. */
function rising(samples: readonly StepSample[]): number[] {
  let least = 0;
  return samples.map((sample) => {
    least = Math.max(least, sample.ms);
    return least;
  });
}

/** What the profiler measures with: real steps on scratch sequences of the engine. */
export interface StepProbe {
  readonly slots: number;
  readonly rowsMax: number;
  /** Runs one step and returns its milliseconds; leaves the KV as it was. */
  stepMs(batch: number, rowsPerSequence: number): number;
  branchMsPerToken(): number;
  nowMs(): number;
}

const ROWS_PER_SEQUENCE = [1, 2, 3, 5, 9, 17];
const REPEATS = 3;

/**
 * Measures T(B, gamma) for B in powers of two up to `slots` and gamma in 0, 1, 2, 4, 8, 16 in at most
 * about `budgetMs`. What does not fit is left to interpolation: plain steps come first, then
 * single sequences, then the rest by size.
 */
export function profileSteps(probe: StepProbe, budgetMs: number): ProfiledStepCost {
  const endMs = probe.nowMs() + budgetMs;
  const batches: number[] = [];
  for (let batch = 1; batch < probe.slots; batch *= 2) batches.push(batch);
  batches.push(probe.slots);
  const grid = batches
    .flatMap((batch) => ROWS_PER_SEQUENCE.map((perSequence) => ({ batch, perSequence })))
    .filter(({ batch, perSequence }) => batch * perSequence <= probe.rowsMax)
    .sort((a, b) => order(a) - order(b));
  const samples: StepSample[] = [];
  let msPerRow = probe.stepMs(1, 1);
  for (const { batch, perSequence } of grid) {
    const rows = batch * perSequence;
    const expectedMs = rows * msPerRow * REPEATS;
    if (samples.length > 0 && probe.nowMs() + expectedMs > endMs) continue;
    const times: number[] = [];
    for (let i = 0; i < REPEATS; i += 1) times.push(probe.stepMs(batch, perSequence));
    // What disturbs a step only ever lengthens it.
    const ms = Math.min(...times);
    samples.push({ batch, rows, ms });
    msPerRow = ms / rows;
  }
  return new ProfiledStepCost(samples, probe.branchMsPerToken());
}

function order(point: { batch: number; perSequence: number }): number {
  if (point.perSequence === 1) return point.batch;
  if (point.batch === 1) return 1e3 + point.perSequence;
  return 1e6 + point.batch * point.perSequence;
}
