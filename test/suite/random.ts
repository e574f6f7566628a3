// Seeded chance of simulations and fault tests: one stream for each purpose, so that one more draw here changes nothing there.

import { fold32, hashString, uniformAt } from "../../src/core/base/hash.ts";

export class Random {
  readonly #key: { hi: number; lo: number };
  #position = 0;

  constructor(seed: number, purpose: string) {
    const salt = hashString(purpose, fold32(seed | 0, Math.floor(seed / 4294967296) | 0));
    this.#key = { hi: salt, lo: fold32(salt, 1) };
  }

  /** Uniform in [0, 1). */
  uniform(): number {
    this.#position += 1;
    return uniformAt(this.#key, this.#position);
  }

  /** A whole number, 0 <= n < end. */
  below(end: number): number {
    return Math.floor(this.uniform() * end);
  }

  /** Mean 0, variance 1 (Box and Muller). */
  normal(): number {
    const radius = Math.sqrt(-2 * Math.log(1 - this.uniform()));
    return radius * Math.cos(2 * Math.PI * this.uniform());
  }
}
