// What an engine step costs on this machine: a short measurement at start, interpolated afterwards. The
// draft planner decides with it; nothing else may depend on it, because times differ from run to run.

import { assert } from "../../core/base/assert.ts";
import type { Clock } from "../../core/base/clock.ts";
import { fastest, type StepTimes } from "../../core/draft/draft-length.ts";

/** One measured step of `rows` token rows. */
export interface StepSample {
  readonly rows: number;
  readonly ms: number;
}

/**
 * Step times by rows alone: whose rows they are hardly matters (four requests with two rows each take as long as one
 * with eight), as long as all of a step have the same number.
 */
export class ProfiledStepCost implements StepTimes {
  readonly #samples: readonly StepSample[];

  constructor(samples: readonly StepSample[]) {
    assert(samples.length > 1, "a profile has samples to draw a line through");
    this.#samples = rising(samples);
  }

  ms(_batch: number, rows: number): number {
    const below = this.#samples.findLastIndex((sample) => sample.rows < rows);
    const at = Math.max(0, Math.min(below, this.#samples.length - 2));
    const [from, to] = this.#samples.slice(at, at + 2) as [StepSample, StepSample];
    return from.ms + ((rows - from.rows) * (to.ms - from.ms)) / (to.rows - from.rows);
  }
}

/**
 * A step moves what was learned by this part at most, however long it took: the estimate is near the median, and other load
 * on the machine, which lengthens some steps, does not move it as it would a mean. Some hundred steps decide.
 */
const LEARNING_RATE = 0.02;
/** No step counts for more in the error: other load makes some take many times as long. */
const ERROR_MAX = 1;

/** A plain step among steps with drafts stands for as many plain steps, at most: it moves what was learned by as much more. */
const STANDS_FOR_MAX = 16;

/** The profile, corrected by the steps that really run: attention gets dearer as responses grow, for draft rows as well. */
export class LearnedStepCost implements StepTimes {
  readonly #profile: StepTimes;
  /** Real over profiled time of plain steps; the same of what draft rows add to them, over that of plain steps. */
  #plain = 1;
  #extra = 1;
  /** Steps with drafts since the last plain one. */
  #drafted = 0;
  /** Recent deviation of step times from the expected ones, relative to these. */
  error = 0;

  constructor(profile: StepTimes) {
    this.#profile = profile;
  }

  ms(batch: number, rows: number): number {
    const plainMs = this.#profile.ms(batch, batch);
    return this.#plain * (plainMs + (this.#profile.ms(batch, rows) - plainMs) * this.#extra);
  }

  /** A step of decoding requests alone took `ms`. */
  observe(batch: number, rows: number, ms: number): void {
    const plainMs = this.#profile.ms(batch, batch);
    if (ms <= 0 || plainMs <= 0) return;
    const deviation = Math.abs(ms / this.ms(batch, rows) - 1);
    this.error += LEARNING_RATE * (Math.min(ERROR_MAX, deviation) - this.error);
    if (rows === batch) {
      this.#plain = learn(this.#plain, ms / plainMs, 1 + Math.min(STANDS_FOR_MAX, this.#drafted));
      this.#drafted = 0;
      return;
    }
    this.#drafted += 1;
    const extraMs = this.#profile.ms(batch, rows) - plainMs;
    if (extraMs <= 0) return;
    this.#extra = learn(this.#extra, (ms / this.#plain - plainMs) / extraMs, 1);
  }
}

/** `steps`: as many steps have shown it. */
function learn(factor: number, seen: number, steps: number): number {
  const most = LEARNING_RATE * steps * factor;
  return factor + Math.min(most, Math.max(-most, seen - factor));
}

/** The samples in order of rows, with times that do not fall: a dip is noise, and would make drafts look free. */
function rising(samples: readonly StepSample[]): StepSample[] {
  let least = 0;
  return samples
    .toSorted((a, b) => a.rows - b.rows)
    .map(({ rows, ms }) => {
      least = Math.max(least, ms);
      return { rows, ms: least };
    });
}

/** Rows of the measured steps of one sequence: those that are always measured, and those for which there may be no time. */
const ROWS_NEEDED = [1, 2, 4, 8, 16];
const ROWS_MORE = [24, 32, 48, 3, 6, 12];
const REPEATS_MAX = 5;

/**
 * Measures what a step takes by its rows, again and again for about `budgetMs`: the least time counts, since what
 * disturbs a step only ever lengthens it. `stepMs` takes a step.
 */
export function profileSteps(
  stepMs: (rows: number) => number,
  { clock, budgetMs }: { clock: Clock; budgetMs: number },
): ProfiledStepCost {
  const endMs = clock.nowMs() + budgetMs;
  const least = new Map<number, number>();
  stepMs(1);
  for (let repeat = 0; repeat < REPEATS_MAX; repeat += 1) {
    for (const rows of [...ROWS_NEEDED, ...ROWS_MORE]) {
      const isNeeded = repeat === 0 && ROWS_NEEDED.includes(rows);
      if (!isNeeded && clock.nowMs() >= endMs) continue;
      const ms = stepMs(rows);
      least.set(rows, Math.min(ms, least.get(rows) ?? ms));
    }
  }
  return new ProfiledStepCost([...least].map(([rows, ms]) => ({ rows, ms })));
}

/** Rows of the step that is compared with one of a single row: always measured. */
const BASE_BATCH = 16;

/** The part of a step that does not depend on its rows, as the number of rows that take as long. */
export function baseRowsOf(times: StepTimes): number {
  const oneMs = times.ms(1, 1);
  const rowMs = (times.ms(BASE_BATCH, BASE_BATCH) - oneMs) / (BASE_BATCH - 1);
  return rowMs > 0 ? Math.max(0, oneMs / rowMs - 1) : Number.MAX_SAFE_INTEGER;
}

/** Usual drafts: at each depth so many of the tokens are accepted if those before are, as in the demo. */
const USUAL = Float64Array.from({ length: 8 }, (_, depth) => 0.7 ** (depth + 1));
/** Least speedup of these steps together: an engine that drafts takes siblings' tokens and compiles the drafts' code. */
const START_GAIN_MIN = 1.25;

/** Whether drafts pay in steps of few requests, with which every iteration ends. Each step is decided anew afterwards. */
export function draftsPay(times: StepTimes, slots: number): boolean {
  let plainMs = 0;
  let draftedMs = 0;
  for (const batch of [1, 2, 4].filter((requests) => requests <= slots)) {
    const gains = USUAL.map((accepted) => batch * accepted);
    plainMs += times.ms(batch, batch);
    draftedMs += batch / fastest({ batch, whole: batch, gains, draftMs: 0 }, times).speed;
  }
  return plainMs >= START_GAIN_MIN * draftedMs;
}
