// How long an iteration still takes: what its responses still need, and how fast the engines make it. A length is Weibull,
// with one scale for each group: open responses count with the tokens that they have, as the first to end are the short
// ones (maximum likelihood of censored lengths).

import type { Group, RolloutRequest } from "../request/buffer.ts";

/** Shape of the lengths: the scale is the root of the mean square. */
const square = (length: number): number => length * length;
/** All groups together count in a group as this part of a response. */
const OTHERS = 0.3;
/** A response is expected to go on for this part of its length at least. */
const REST = 0.3;
/** Factor either way of an estimate: on ten recorded iterations, four of five estimates were nearer (time-left.test.ts). */
export const ETA_FACTOR = 2.2;
/** The last measurement counts so much beside those before it. */
const SMOOTHING = 0.2;

export interface Speed {
  readonly running: number;
  /** Tokens a second of all running responses together. */
  readonly tokensPerS: number;
}

export class TimeLeft {
  /** Responses of the iteration that have ended, and their squared lengths. */
  #ended = 0;
  #squares = 0;
  /** Output tokens a second of one response; 0: not measured. */
  #speed = 0;

  clear(): void {
    this.#ended = 0;
    this.#squares = 0;
    this.#speed = 0;
  }

  finished({ response }: RolloutRequest): void {
    if (response.finish === null || response.finish === "abort") return;
    this.#ended += 1;
    this.#squares += square(response.length);
  }

  /** Seconds; null: no response has finished, or nothing runs. `learned`: L_g by earlier epochs; see ContextManager. */
  seconds(
    requests: Iterable<RolloutRequest>,
    learned: (group: Group) => number | null,
    { running, tokensPerS }: Speed,
  ): number | null {
    if (running === 0 || tokensPerS === 0) return null;
    const speed = tokensPerS / running;
    this.#speed += (this.#speed === 0 ? 1 : SMOOTHING) * (speed - this.#speed);
    const open = [...requests].filter(({ status }) => status !== "finished");
    const squares = open.reduce(
      (sum, { response }) => sum + square(response.length),
      this.#squares,
    );
    const overall = this.#ended === 0 ? null : squares / this.#ended;
    const scales = new Map<Group, number | null>();
    let all = 0;
    let longest = 0;
    for (const { group, response } of open) {
      const scale = scales.getOrInsertComputed(group, () => scaleOf(group, overall, learned));
      if (scale === null) return null;
      const whole = Math.max(scale, (1 + REST) * response.length);
      const left = Math.max(1, Math.min(response.tokensMax, whole) - response.length);
      all += left;
      longest = Math.max(longest, left);
    }
    return Math.max(all / Math.min(running, open.length), longest) / this.#speed;
  }
}

/** Usual length in the group; null: no response has ended, here or elsewhere. */
function scaleOf(
  group: Group,
  overall: number | null,
  learned: (group: Group) => number | null,
): number | null {
  let ended = 0;
  let squares = 0;
  for (const { response } of group.requests) {
    squares += square(response.length);
    if (response.finish !== null && response.finish !== "abort") ended += 1;
  }
  const prior = ended === 0 ? learned(group) : null;
  if (prior !== null) return prior;
  return overall === null ? null : Math.sqrt((squares + OTHERS * overall) / (ended + OTHERS));
}
