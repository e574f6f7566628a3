// The time of an engine step on this machine: a short measurement at start, interpolated afterwards. Only the
// draft planner may depend on it, because times differ from run to run.

import { assert } from "../../core/base/assert.ts";
import type { Clock } from "../../core/base/clock.ts";
import { fastest, type StepTimes } from "../../core/draft/draft-length.ts";
import type { LlamaContext } from "./context.ts";

/** A measured step of `rows` token rows. */
export interface StepSample {
  readonly rows: number;
  readonly ms: number;
}

/**
 * Step times by the number of rows. How these are divided among requests hardly matters (four requests with two rows each
 * take as long as one with eight), if all requests of the step have the same number.
 */
export class ProfiledStepCost implements StepTimes {
  readonly #samples: readonly StepSample[];

  constructor(samples: readonly StepSample[]) {
    assert(samples.length > 1, "a profile has samples to draw a line through");
    // Times never fall with more rows: a dip is noise, and would make drafts look free.
    let least = 0;
    this.#samples = samples
      .toSorted((a, b) => a.rows - b.rows)
      .map(({ rows, ms }) => {
        least = Math.max(least, ms);
        return { rows, ms: least };
      });
  }

  ms(_batch: number, rows: number): number {
    const below = this.#samples.findLastIndex((sample) => sample.rows < rows);
    const at = Math.max(0, Math.min(below, this.#samples.length - 2));
    const [from, to] = this.#samples.slice(at, at + 2) as [StepSample, StepSample];
    return from.ms + ((rows - from.rows) * (to.ms - from.ms)) / (to.rows - from.rows);
  }
}

/**
 * A step changes a learned factor by this share at most, however long it took. So the estimate is close to the median, and
 * less distorted than a mean by other load on the machine, which lengthens some steps. It takes some hundred steps to adapt.
 */
const LEARNING_RATE = 0.02;
/** Limit of a single step's relative error: other load makes some steps take many times as long. */
const ERROR_MAX = 1;

/** A rare plain step among steps with drafts counts as this many plain steps, at most. */
const STANDS_FOR_MAX = 16;

/** The profile, corrected by real steps: attention takes longer as responses grow, for draft rows as well. */
export class LearnedStepCost implements StepTimes {
  /** The times of an idle engine's steps. */
  profile: StepTimes;
  /** Ratio of real to profiled time of plain steps; and the ratio for the time that draft rows add, relative to `#plain`. */
  #plain = 1;
  #extra = 1;
  /** Steps with drafts since the last plain one. */
  #drafted = 0;
  /** Recent mean of the relative deviation of step times from the expected ones. */
  error = 0;

  constructor(profile: StepTimes) {
    this.profile = profile;
  }

  ms(batch: number, rows: number): number {
    const plainMs = this.profile.ms(batch, batch);
    return this.#plain * (plainMs + (this.profile.ms(batch, rows) - plainMs) * this.#extra);
  }

  /** Learns from a step of `ms` without prefill. */
  observe(batch: number, rows: number, ms: number): void {
    const plainMs = this.profile.ms(batch, batch);
    if (ms <= 0 || plainMs <= 0) return;
    const deviation = Math.abs(ms / this.ms(batch, rows) - 1);
    this.error += LEARNING_RATE * (Math.min(ERROR_MAX, deviation) - this.error);
    if (rows === batch) {
      this.#plain = learn(this.#plain, ms / plainMs, 1 + Math.min(STANDS_FOR_MAX, this.#drafted));
      this.#drafted = 0;
      return;
    }
    this.#drafted += 1;
    const extraMs = this.profile.ms(batch, rows) - plainMs;
    if (extraMs <= 0) return;
    this.#extra = learn(this.#extra, (ms / this.#plain - plainMs) / extraMs, 1);
  }
}

/** Moves a factor towards an observation. `steps`: how many steps this stands for; more steps may move it further. */
function learn(factor: number, observed: number, steps: number): number {
  const most = LEARNING_RATE * steps * factor;
  return factor + Math.min(most, Math.max(-most, observed - factor));
}

/** Numbers of rows to measure, with one sequence: those always measured, and those measured if there is time. */
const ROWS_NEEDED = [1, 2, 4, 8, 16];
const ROWS_MORE = [24, 32, 48, 3, 6, 12];
const REPEATS_MAX = 5;

/**
 * Measures the time of a step by its rows, repeatedly for about `budgetMs`. The shortest time counts, since every
 * disturbance only lengthens a step. `stepMs` runs a step.
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

/** Tokens with KV in a measured step, as in the middle of a short response: attention's cost grows with them. */
const PROBE_TOKENS = 96;
const PROBE_CHUNK = 32;

/** Measures the steps of an empty context, which stays empty. */
export function profileContext(
  context: LlamaContext,
  options: { clock: Clock; budgetMs: number },
): ProfiledStepCost {
  for (let from = 0; from < PROBE_TOKENS; from += PROBE_CHUNK) fill(context, from, PROBE_CHUNK);
  const stepMs = (rows: number): number => {
    for (let i = 0; i < rows; i += 1) context.add(i % 2, PROBE_TOKENS + i, 0, true);
    const startMs = options.clock.nowMs();
    context.decode();
    const ms = options.clock.nowMs() - startMs;
    context.truncate(0, PROBE_TOKENS);
    return ms;
  };
  const profile = profileSteps(stepMs, options);
  context.clear(0);
  return profile;
}

/** Bytes that one more token adds to exported KV. The context is empty, and stays so. */
export function kvBytesPerToken(context: LlamaContext): number {
  const few = 2;
  const more = 16;
  fill(context, 0, few);
  const fewBytes = context.stateBytes(0);
  fill(context, few, more);
  const bytes = context.stateBytes(0) - fewBytes;
  context.clear(0);
  return Math.ceil(bytes / more);
}

function fill(context: LlamaContext, from: number, count: number): void {
  for (let i = from; i < from + count; i += 1) context.add(i % 2, i, 0, false);
  context.decode();
}

/** Rows of the step that is compared with a step of one row. It is among those always measured. */
const BASE_BATCH = 16;

/** The fixed part of a step's time, expressed as the number of rows that take as long. */
export function baseRowsOf(times: StepTimes): number {
  const oneMs = times.ms(1, 1);
  const rowMs = (times.ms(BASE_BATCH, BASE_BATCH) - oneMs) / (BASE_BATCH - 1);
  return rowMs > 0 ? Math.max(0, oneMs / rowMs - 1) : Number.MAX_SAFE_INTEGER;
}

/** Typical drafts: the probability that the tokens up to each depth are accepted, as in the demo. */
const USUAL = Float64Array.from({ length: 8 }, (_, depth) => 0.7 ** (depth + 1));
/** Minimum speedup of these steps: drafting also has fixed costs, such as siblings' tokens and compiling its code. */
const START_GAIN_MIN = 1.25;

/** Whether drafts can pay in steps of few requests, with which every iteration ends. Later each step decides for itself. */
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
