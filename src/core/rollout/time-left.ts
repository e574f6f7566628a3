// How long an iteration still takes: how long its responses will be, and how long the engines need for them.
//
// Lengths of a group are alike, and the first to finish are the short ones. So a length is Weibull, with a scale of its
// group that is gamma distributed over groups: each response, finished or not, tells of its group and of all groups, in
// closed form. Every open response then counts as one quantile of what it can be, spread evenly over all of them.
// Engines serve all open responses alike until fewer are left than run now; a step of fewer requests is shorter.

import type { Group, Request } from "../request/buffer.ts";
import { isCut } from "../request/request.ts";

/** Shapes of a length within its group, and of scales over groups: as in recorded reasoning traces (docs/SIMULATOR.md). */
const SHAPE = 3;
const GROUP_SHAPE = 1;
const ITERATIONS = 8;
/** Fractions of its multiples are spread evenly (a Kronecker sequence). */
const GOLDEN = (Math.sqrt(5) - 1) / 2;
/** Share of estimates whose range is to hold the end. */
const HELD = 0.8;
/** Logarithm of the factor either way of an estimate, before one was judged: 2.2, as a machine with other work needs. */
const SPREAD = { first: 0.8, gain: 0.5, min: 0.05, max: 3 };
/** The last measurement counts so much beside those before it. */
const SMOOTHING = 0.2;
/** The last complete groups are counted, so many: an iteration ends only with a weight update or a minute without requests. */
const GROUPS_MAX = 16_384;

/** Load and speed of the engines. */
export interface Speed {
  readonly running: number;
  /** Tokens a second of all running responses together. */
  readonly tokensPerS: number;
  readonly engines: number;
  /** The part of a step that does not depend on its requests, as the number of requests that take as long. */
  readonly baseRequests: number;
}

/** Statistics of the lengths in a group: responses that have ended, and the sum over all of length ^ SHAPE. */
interface Lengths {
  ended: number;
  sum: number;
}

export class TimeLeft {
  /** Groups that are complete, up to twice as many as count. */
  #complete: Lengths[] = [];
  /** Output tokens a second of one response. */
  #speed = 0;
  #spread = SPREAD.first;
  /** Scale of the distribution of groups; 0: not known. */
  #scale = 0;

  /** The next iteration begins. */
  clear(): void {
    this.#complete = [];
    this.#speed = 0;
  }

  /** A closed group has only finished responses. */
  completed(group: Group): void {
    this.#complete.push(lengthsOf(group, null));
    if (this.#complete.length >= 2 * GROUPS_MAX) this.#complete = this.#complete.slice(-GROUPS_MAX);
  }

  /** Factor either way of an estimate. */
  get spread(): number {
    return Math.exp(this.#spread);
  }

  /** An iteration is over, whose end this share of its ranges held: adaptive conformal inference (Gibbs and Candès 2021). */
  judged(held: number): void {
    const spread = this.#spread + SPREAD.gain * (HELD - held);
    this.#spread = Math.min(SPREAD.max, Math.max(SPREAD.min, spread));
  }

  /** Seconds; null: no response has finished, or nothing runs. `learned`: see ContextManager. */
  seconds(
    requests: Iterable<Request>,
    learned: (group: Group) => number | null,
    { running, tokensPerS, engines, baseRequests }: Speed,
  ): number | null {
    if (running === 0 || tokensPerS === 0) return null;
    const speed = tokensPerS / running;
    this.#speed += (this.#speed === 0 ? 1 : SMOOTHING) * (speed - this.#speed);
    const left = this.#leftOf(requests, learned);
    if (left === null) return null;
    left.sort();
    let [seconds, before] = [0, 0];
    for (const [i, tokens] of left.entries()) {
      const open = left.length - i;
      const active = Math.min(running, open);
      const shorter = (baseRequests + active / engines) / (baseRequests + running / engines);
      seconds += ((tokens - before) * shorter * open) / (active * this.#speed);
      before = tokens;
    }
    return seconds;
  }

  /**
   * Probability that a response of its group gets at least as long as the request's has. 1: no other of its group has
   * ended.
   */
  rarity({ group, response }: Request): number {
    const { ended, sum } = lengthsOf(group, null);
    if (ended === 0) return 1;
    const own = response.length ** SHAPE;
    const others = this.#scale + sum - own;
    return (others / (others + own)) ** (GROUP_SHAPE + ended);
  }

  /** Output tokens that each open response still makes. */
  #leftOf(
    requests: Iterable<Request>,
    learned: (group: Group) => number | null,
  ): Float64Array | null {
    const known = [...requests];
    const open = known.filter(({ status }) => status !== "finished");
    const groups = new Map<Group, Lengths>();
    for (const { group } of known) {
      if (!groups.has(group)) groups.set(group, lengthsOf(group, learned(group)));
    }
    const all = [...this.#complete, ...groups.values()];
    const ended = all.reduce((total, lengths) => total + lengths.ended, 0);
    if (ended === 0) return null;
    if (this.#scale === 0) this.#scale = all.reduce((sum, lengths) => sum + lengths.sum, 0) / ended;
    for (let i = 0; i < ITERATIONS; i += 1) this.#fit(all);
    return Float64Array.from(open, ({ group, response: { length, tokensMax } }, i) => {
      const own = groups.get(group) as Lengths;
      const part = (i * GOLDEN + 0.5) % 1;
      const more = (this.#scale + own.sum) * (part ** (-1 / (GROUP_SHAPE + own.ended)) - 1);
      const whole = (length ** SHAPE + more) ** (1 / SHAPE);
      return Math.max(1, Math.min(tokensMax, whole) - length);
    });
  }

  /** A step towards the likeliest scale, given the groups. */
  #fit(groups: readonly Lengths[]): void {
    let weight = 0;
    for (const { ended, sum } of groups) weight += (GROUP_SHAPE + ended) / (this.#scale + sum);
    this.#scale = (GROUP_SHAPE * groups.length) / weight;
  }
}

/** `learned`: L_g where earlier epochs have shown it, which counts as a response while none has ended. */
function lengthsOf(group: Group, learned: number | null): Lengths {
  const lengths: Lengths = { ended: 0, sum: 0 };
  for (const { response } of group.requests) {
    lengths.sum += response.length ** SHAPE;
    if (response.finish !== null && !isCut(response.finish)) lengths.ended += 1;
  }
  if (lengths.ended > 0 || learned === null) return lengths;
  return { ended: 1, sum: lengths.sum + learned ** SHAPE };
}
