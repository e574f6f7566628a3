// The slow, obvious twin of the core's mixer (assembly/draft/{model,mixer,adaptive-state,logistic}): families are maps by
// name and class, made when they are first asked for. Single precision where the core has it, so that results are equal
// to the last bit.

const { fround } = Math;

/** A candidate's features: classes by name; a state of class 0 says nothing. */
export interface Features {
  readonly logit: number;
  readonly states: Readonly<Record<StateName, number>>;
  readonly selected: Readonly<Record<SelectorName, number>>;
}

/** In the order of the mixer's inputs, behind 1 and the logit. */
const STATES = ["crossTwo", "crossThree", "recovery", "one", "two", "skip"] as const;
export type StateName = (typeof STATES)[number];

/** In the order in which their vectors are added, in these groups. */
const SUMMED = [
  ["recent"],
  ["recovered"],
  ["before"],
  ["context"],
  ["continued", "lastUse"],
  ["followers", "token"],
] as const;
export type SelectorName = (typeof SUMMED)[number][number];

const FIRST_WEIGHTS = [-0.4, 0.5, 0.25, 0.3, 0.7, 0.24, 0.26, 0.2];
const CONTEXT_KINDS = 6;
const WEIGHT_RATE = fround(0.001);
const TOKEN_TIMES = 3;
const PAIR_RATE = 0.05;
const PAIR_MAX = 3;

/** log(odds), linear between eight steps an octave from 2^-10 to 2^11. */
export function stretch(p: number): number {
  const odds = fround(p / Math.max(1 - p, 1e-9));
  if (odds < 2 ** -10) return fround(Math.log(2 ** -10));
  if (odds >= 2 ** 11) return fround(Math.log(2 ** 11));
  let exponent = Math.floor(Math.log2(odds));
  // Rounding in log2 must not move a power of two.
  if (2 ** exponent > odds) exponent -= 1;
  if (2 ** (exponent + 1) <= odds) exponent += 1;
  const eighths = (odds / 2 ** exponent - 1) * 8;
  const step = Math.floor(eighths);
  const at = (i: number) => fround(Math.log(2 ** exponent * (1 + i / 8)));
  return at(step) + (at(step + 1) - at(step)) * (eighths - step);
}

/** The logistic function, linear between sixteen steps a unit in [-12, 12]. */
export function squash(z: number): number {
  const at = (Math.min(Math.max(z, -12), 12 - 0.001) + 12) * 16;
  const step = Math.floor(at);
  const value = (i: number) => fround(1 / (1 + Math.exp(-(i / 16 - 12))));
  return value(step) + (value(step + 1) - value(step)) * (at - step);
}

export const oddsOf = (p: number): number => p / (1 - p);

interface State {
  frequency: number;
  logit: number;
  seen: number;
}

function crossGuess(cls: number): number {
  if (cls < 8) return 0.08;
  const count = 2 ** (cls & 7) * 0.5 + 0.5;
  const octaves = (Math.max((cls - 8) >> 3, 1) - 1) / 4;
  return (count / (count + 1)) * 2 ** -octaves;
}

function followerGuess(cls: number): number {
  const longer = (cls - 1) & 3;
  if (cls <= 4) return 0.62 + 0.1 * longer;
  return (cls <= 8 ? 0.66 : 0.5) + 0.03 * longer;
}

function guess(name: StateName, cls: number): number {
  if (name === "crossTwo" || name === "crossThree") return crossGuess(cls);
  if (name === "recovery") return cls >= 300 ? 0.1 : (((cls - 1) >> 4) & 1) !== 0 ? 0.4 : 0.15;
  return followerGuess(name === "one" ? Math.floor(cls / 8) : cls);
}

export class MixerTwin {
  readonly #states = new Map<string, State>();
  readonly #vectors = new Map<string, number[]>();
  readonly #pairs = new Map<number, number>();
  #learned = 0;

  frequency(name: StateName, cls: number): number {
    return this.#state(name, cls).frequency;
  }

  /** The probability of a token behind the token `before`. */
  probability(features: Features, before: number, token: number): number {
    const x = this.#inputs(features);
    const products = x.map((input, lane) => fround(this.#weight(features, lane) * input));
    let mix = 0;
    for (let i = 0; i < products.length; i += 2) {
      mix = fround(mix + fround((products[i] ?? 0) + (products[i + 1] ?? 0)));
    }
    return squash(mix + (this.#pairs.get(pairCell(before, token)) ?? 0));
  }

  learn(features: Features, pair: readonly [number, number], accepted: boolean, others = 1): void {
    const odds = oddsOf(this.probability(features, ...pair));
    const error = (accepted ? 1 : 0) - odds / (others + odds);
    this.#learned += 1;
    const times = fround(1 + fround(400_000 / fround(100_000 + this.#learned)));
    const rate = fround(fround(WEIGHT_RATE * times) * fround(error));
    const by = this.#inputs(features).map((input) => fround(rate * input));
    for (const name of SUMMED.flat()) {
      const vector = this.#vector(name, features.selected[name]);
      const more = name === "before" || name === "token" ? TOKEN_TIMES : 1;
      for (const [lane, move] of by.entries()) {
        vector[lane] = fround((vector[lane] ?? 0) + fround(move * more));
      }
    }
    const cell = pairCell(...pair);
    const bias = (this.#pairs.get(cell) ?? 0) + error * PAIR_RATE;
    this.#pairs.set(cell, fround(Math.min(Math.max(bias, -PAIR_MAX), PAIR_MAX)));
    for (const name of STATES) {
      if (features.states[name] !== 0) raise(this.#state(name, features.states[name]), accepted);
    }
  }

  #inputs(features: Features): number[] {
    const logits = STATES.map((name) => this.#state(name, features.states[name]).logit);
    return [1, features.logit, ...logits];
  }

  #weight(features: Features, lane: number): number {
    let sum = 0;
    for (const group of SUMMED) {
      let part = 0;
      for (const name of group) {
        part = fround(part + (this.#vector(name, features.selected[name])[lane] ?? 0));
      }
      sum = fround(sum + part);
    }
    return sum;
  }

  #vector(name: SelectorName, cls: number): number[] {
    const key = `${name} ${cls}`;
    let vector = this.#vectors.get(key);
    if (vector === undefined) {
      vector = FIRST_WEIGHTS.map((weight) => (name === "context" ? fround(weight) : 0));
      if (name === "context") vector[0] = fround(-0.4 + 0.053 * Math.floor(cls / CONTEXT_KINDS));
      this.#vectors.set(key, vector);
    }
    return vector;
  }

  #state(name: StateName, cls: number): State {
    const key = `${name} ${cls}`;
    let state = this.#states.get(key);
    if (state === undefined) {
      const first = guess(name, cls);
      const logit = cls === 0 ? 0 : fround(stretch(first));
      state = { frequency: fround(first), logit, seen: 3 };
      this.#states.set(key, state);
    }
    return state;
  }
}

function raise(state: State, accepted: boolean): void {
  const error = fround((accepted ? 1 : 0) - state.frequency);
  state.frequency = fround(state.frequency + fround(error / fround(state.seen + 1.5)));
  state.logit = fround(stretch(Math.max(state.frequency, 1e-4)));
  if (state.seen < 1000) state.seen += 1;
}

function pairCell(before: number, token: number): number {
  const key = (Math.imul(before, 0x85ebca6b) + token) ^ (before >>> 15);
  return Math.imul(key, 0x9e3779b1) >>> 16;
}
