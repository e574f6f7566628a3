// How long an iteration still takes, as a range. Lengths of unfinished responses are drawn from a hazard rate that is
// estimated from finished and running ones together (Nelson and Aalen), so that the short responses which finish first
// do not mislead it. Each draw is played through: every running response gets the same speed, which grows as the
// batch shrinks, and a waiting one takes a free place. The range is that of the draws.

import { uniformAt } from "../base/hash.ts";
import type { Group, Request } from "../request/buffer.ts";

/** A request that is not finished. */
export interface OpenRequest {
  /** Output tokens so far. */
  readonly length: number;
  readonly tokensMax: number;
  readonly isRunning: boolean;
  /** Sum and number of the logarithms of its finished siblings' lengths. */
  readonly siblingLogs: number;
  readonly siblings: number;
}

/** Those of `requests` that are not finished, with what their groups have. */
export function openRequests(requests: Iterable<Request>): OpenRequest[] {
  const open: OpenRequest[] = [];
  const logs = new Map<Group, number>();
  for (const { status, response, group } of requests) {
    if (status === "finished") continue;
    const { finished } = group;
    if (finished > 0 && !logs.has(group)) logs.set(group, finishedLogs(group));
    open.push({
      length: response.length,
      tokensMax: response.tokensMax,
      isRunning: status === "running",
      siblingLogs: logs.get(group) ?? 0,
      siblings: finished,
    });
  }
  return open;
}

function finishedLogs({ requests }: Group): number {
  let sum = 0;
  for (const { status, response } of requests) {
    if (status === "finished") sum += Math.log(Math.max(1, response.length));
  }
  return sum;
}

/** Seconds from now. */
export interface Eta {
  readonly lowS: number;
  readonly likelyS: number;
  readonly highS: number;
}

/** Width of a bin: logarithm of the ratio of its ends. */
const BIN = Math.log(1.15);
/** Up to 2^20 tokens. */
const BINS = Math.ceil(Math.log(2 ** 20) / BIN) + 1;
/** Weight of the bin before in a bin's hazard: the exposure of about one response. */
const CARRIED = 0.5;
/** Hazard for a doubling and a half (e) of length beyond the longest response that has finished, at least. */
const HAZARD_MIN = 1.3;
/** Share of the variance of log lengths that lies between groups, as in reasoning traces (0.5 to 0.8). */
const CORRELATION = 0.6;
/** Requests that one estimate plays through, over all draws: some milliseconds. */
const PLAYED_MAX = 20_000;
const DRAWS_MIN = 4;
const DRAWS_MAX = 32;
/** What the draws do not know: longest groups run first, moves, prefill, and other work on the engines' machines. */
const MARGIN_LOW = 0.35;
const MARGIN_HIGH = 0.4;
/** Of an earlier iteration's lengths, in the next one. */
const KEPT_SHARE = 0.25;
/** Weight of the speeds before, at each new sample. */
const SPEED_KEPT = 0.98;

export class EtaEstimator {
  readonly #stopped = new Float64Array(BINS);
  /** Ended by their maximum: they would have gone on. */
  readonly #cut = new Float64Array(BINS);
  #count = 0;
  readonly #speed = new SpeedModel();
  #draws = 0;

  finished(length: number, isCut: boolean): void {
    const bins = isCut ? this.#cut : this.#stopped;
    const bin = binOf(length);
    bins[bin] = (bins[bin] ?? 0) + 1;
    this.#count += 1;
  }

  /** `running` responses gain `tokensPerS` together. */
  observe(running: number, tokensPerS: number): void {
    if (running > 0 && tokensPerS > 0) this.#speed.observe(running, running / tokensPerS);
  }

  /** A new iteration: the lengths of the last one count for less. */
  begin(): void {
    for (let bin = 0; bin < BINS; bin += 1) {
      this.#stopped[bin] = (this.#stopped[bin] ?? 0) * KEPT_SHARE;
      this.#cut[bin] = (this.#cut[bin] ?? 0) * KEPT_SHARE;
    }
    this.#count *= KEPT_SHARE;
  }

  /** null: nothing is known of lengths or speeds yet, or nothing runs. */
  estimate(open: readonly OpenRequest[]): Eta | null {
    const running = open.filter(({ isRunning }) => isRunning).length;
    if (running === 0 || this.#count < 1 || !this.#speed.isKnown) return null;
    const hazards = this.#hazards(open);
    const draws = Math.max(DRAWS_MIN, Math.min(DRAWS_MAX, Math.floor(PLAYED_MAX / open.length)));
    const ends: number[] = [];
    for (let draw = 0; draw < draws; draw += 1) ends.push(this.#play(open, hazards, running));
    ends.sort((a, b) => a - b);
    const at = (share: number) => ends[Math.round(share * (ends.length - 1))] ?? 0;
    return {
      lowS: at(0.1) * (1 - MARGIN_LOW),
      likelyS: at(0.5),
      highS: at(0.9) * (1 + MARGIN_HIGH),
    };
  }

  /** Cumulative hazard at the lower end of each bin. */
  #hazards(open: readonly OpenRequest[]): Float64Array {
    const running = new Float64Array(BINS);
    let atRisk = 0;
    for (const { length } of open) {
      if (length === 0) continue;
      const bin = binOf(length);
      running[bin] = (running[bin] ?? 0) + 1;
      atRisk += 1;
    }
    let longest = 0;
    for (let bin = 0; bin < BINS; bin += 1) {
      const stopped = this.#stopped[bin] ?? 0;
      atRisk += stopped + (this.#cut[bin] ?? 0);
      if (stopped > 0) longest = bin;
    }
    const cumulative = new Float64Array(BINS + 1);
    let hazard = 0;
    for (let bin = 0; bin < BINS; bin += 1) {
      const stopped = this.#stopped[bin] ?? 0;
      const leaving = stopped + (this.#cut[bin] ?? 0) + (running[bin] ?? 0);
      const exposure = (atRisk - leaving / 2) * BIN;
      hazard = (stopped + hazard * CARRIED) / (exposure + CARRIED);
      if (bin > longest) hazard = Math.max(HAZARD_MIN, hazard);
      atRisk -= leaving;
      cumulative[bin + 1] = (cumulative[bin] ?? 0) + hazard * BIN;
    }
    return cumulative;
  }

  /** Seconds until the last one ends, for one draw of all lengths. */
  #play(open: readonly OpenRequest[], hazards: Float64Array, running: number): number {
    this.#draws += 1;
    const key = { hi: this.#draws, lo: 0x9e37 };
    // One factor for all lengths of a draw: the hazard is known from `count` responses only.
    const spread = gaussian(uniformAt(key, 0), uniformAt(key, 1)) / Math.sqrt(this.#count + 1);
    const factor = Math.exp(Math.max(-1.5, Math.min(1.5, spread)));
    const middle = medianLog(hazards);
    const share = uniformAt(key, 2);
    const places = new Heap(running);
    const waiting: number[] = [];
    for (const [i, request] of open.entries()) {
      const { length, tokensMax, siblings, siblingLogs, isRunning } = request;
      const drawn = -Math.log(1 - uniformAt(key, i + 3)) / factor;
      // Of a group with finished siblings, the mean and the spread of log lengths are those given the siblings.
      const belief = siblings / (siblings + (1 - CORRELATION) / CORRELATION);
      const center = siblings === 0 ? middle : middle + belief * (siblingLogs / siblings - middle);
      const scale = Math.sqrt(1 - CORRELATION * belief);
      const from = middle + (Math.log(Math.max(1, length)) - center) / scale;
      const to = center + scale * (logAfter(hazards, from, drawn) - middle);
      const total = Math.min(tokensMax, Math.exp(to));
      const left = Math.max(1, total - length);
      if (isRunning) places.push(left);
      else waiting.push(left);
    }
    return this.#makespan(places, waiting, share);
  }

  /** Progress is counted in tokens of each running response, since all have the same speed. */
  #makespan(places: Heap, waiting: readonly number[], share: number): number {
    const speed = this.#speed.line(share);
    let seconds = 0;
    let done = 0;
    let next = 0;
    while (places.size > 0) {
      const end = places.min;
      seconds += (end - done) * speed(places.size);
      done = end;
      const more = waiting[next];
      next += 1;
      if (more === undefined) places.pop();
      else places.replace(end + more);
    }
    return seconds;
  }
}

function binOf(length: number): number {
  return Math.min(BINS - 1, Math.floor(Math.log(Math.max(1, length)) / BIN));
}

/** The logarithm of the length that half of the responses exceed. */
function medianLog(hazards: Float64Array): number {
  return logAfter(hazards, 0, Math.LN2);
}

/** The logarithm of a length at which the cumulative hazard has grown by `drawn` since that of `log`. */
function logAfter(hazards: Float64Array, log: number, drawn: number): number {
  const from = Math.min(BINS - 1e-9, Math.max(0, log / BIN));
  const low = Math.floor(from);
  const [before, after] = [hazards[low] ?? 0, hazards[low + 1] ?? 0];
  const target = before + (after - before) * (from - low) + drawn;
  if (target >= (hazards[BINS] ?? 0)) return BINS * BIN;
  let [left, right] = [low, BINS];
  while (right - left > 1) {
    const middle = (left + right) >> 1;
    if ((hazards[middle] ?? 0) <= target) left = middle;
    else right = middle;
  }
  const [start, end] = [hazards[left] ?? 0, hazards[right] ?? 0];
  return (left + (end > start ? (target - start) / (end - start) : 0)) * BIN;
}

function gaussian(a: number, b: number): number {
  return Math.sqrt(-2 * Math.log(1 - a)) * Math.cos(2 * Math.PI * b);
}

/** Change of the batch, relative to it, from which samples outweigh the drawn slope. */
const DOUBT = 0.1;
/** A response alone is at most so many times faster than in the batch. */
const SECONDS_MIN = 1 / 64;

/** Seconds per token of one response, a + b x batch: a straight line through the samples, drawn to a prior slope. */
class SpeedModel {
  #weight = 0;
  #batch = 0;
  #seconds = 0;
  #batchBatch = 0;
  #batchSeconds = 0;

  get isKnown(): boolean {
    return this.#weight > 0;
  }

  observe(batch: number, seconds: number): void {
    this.#weight = this.#weight * SPEED_KEPT + 1;
    this.#batch = this.#batch * SPEED_KEPT + batch;
    this.#seconds = this.#seconds * SPEED_KEPT + seconds;
    this.#batchBatch = this.#batchBatch * SPEED_KEPT + batch * batch;
    this.#batchSeconds = this.#batchSeconds * SPEED_KEPT + batch * seconds;
  }

  /** Seconds per token at a batch. `share`: of a step's time that grows with the batch, until the batch has changed. */
  line(share: number): (batch: number) => number {
    const [batchMean, secondsMean] = [this.#batch / this.#weight, this.#seconds / this.#weight];
    const variance = this.#batchBatch / this.#weight - batchMean * batchMean;
    const covariance = this.#batchSeconds / this.#weight - batchMean * secondsMean;
    const doubt = (DOUBT * batchMean) ** 2;
    const prior = (share * secondsMean) / batchMean;
    const slope = Math.max(0, (covariance + doubt * prior) / (variance + doubt));
    const least = SECONDS_MIN * secondsMean;
    return (batch) => Math.max(least, secondsMean + slope * (batch - batchMean));
  }
}

/** A binary heap of numbers, least first. */
class Heap {
  readonly #values: Float64Array;
  size = 0;

  constructor(capacity: number) {
    this.#values = new Float64Array(capacity);
  }

  get min(): number {
    return this.#values[0] ?? 0;
  }

  push(value: number): void {
    let at = this.size;
    this.size += 1;
    while (at > 0) {
      const parent = (at - 1) >> 1;
      const above = this.#values[parent] ?? 0;
      if (above <= value) break;
      this.#values[at] = above;
      at = parent;
    }
    this.#values[at] = value;
  }

  pop(): void {
    this.size -= 1;
    const last = this.#values[this.size] ?? 0;
    if (this.size > 0) this.replace(last);
  }

  /** Takes the least out and puts `value` in. */
  replace(value: number): void {
    const values = this.#values;
    let at = 0;
    for (;;) {
      let child = 2 * at + 1;
      if (child >= this.size) break;
      if (child + 1 < this.size && (values[child + 1] ?? 0) < (values[child] ?? 0)) child += 1;
      const below = values[child] ?? 0;
      if (below >= value) break;
      values[at] = below;
      at = child;
    }
    values[at] = value;
  }
}
