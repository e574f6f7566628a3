// Draws input number `index` of a run: it follows from the seed, the target's name and the index alone, so a finding is
// drawn again without the inputs before it. One in sixteen is drawn anew by fast-check. The others are variations of a
// few thousand that were: a variation takes a hundredth of the time.

import fc from "fast-check";
import { fold32, hashString, mix32 } from "../../../src/core/base/hash.ts";
import { Dice } from "../attacks/settings.ts";

/** How the inputs of a target are made. */
export interface Inputs<T> {
  /** Recorded attacks: the first inputs of every run. */
  readonly seeds?: readonly T[];
  readonly draw: fc.Arbitrary<T>;
  /** Derives an input from two others, without changing them. */
  readonly vary: (base: T, other: T, dice: Dice) => T;
}

/** A counter-based generator, in the shape that fast-check takes. */
class CountedBits {
  readonly #key: number;
  #count: number;

  constructor(key: number, count = 0) {
    this.#key = key;
    this.#count = count;
  }

  clone(): CountedBits {
    return new CountedBits(this.#key, this.#count);
  }

  next(): number {
    this.#count += 1;
    return fold32(this.#key, mix32(this.#count)) | 0;
  }

  getState(): readonly number[] {
    return [this.#key, this.#count];
  }
}

/** Small values and bounds come more often. */
const BIAS = 3;
const DRAWN_ANEW = 16;
const CORPUS = 4096;

export class Generator<T> {
  readonly #inputs: Inputs<T>;
  readonly #key: number;
  readonly #corpus: (T | undefined)[] = [];

  constructor(inputs: Inputs<T>, { seed, name }: { seed: number; name: string }) {
    this.#inputs = inputs;
    this.#key = fold32(seed, hashString(name));
  }

  at(index: number): T {
    const recorded = this.#inputs.seeds?.[index];
    if (recorded !== undefined) return recorded;
    const key = fold32(this.#key, index);
    const dice = new Dice(key);
    if (dice.below(DRAWN_ANEW) === 0) return this.#drawn(key);
    return this.#inputs.vary(this.#known(dice), this.#known(dice), dice);
  }

  #known(dice: Dice): T {
    const place = dice.below(CORPUS);
    this.#corpus[place] ??= this.#drawn(fold32(mix32(this.#key), place));
    return this.#corpus[place];
  }

  #drawn(key: number): T {
    return this.#inputs.draw.generate(new fc.Random(new CountedBits(key)), BIAS).value;
  }
}
