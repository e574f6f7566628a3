// The tokens that followed the same one, two or three tokens in a request's own text, in its group's and in any: drafts of
// a device that has left its tree. The layout is that of assembly/followers.ts.

const WORDS_BITS = 23;
const TOKEN_BITS = 21;
const SURE_BITS = 2;
const SURE_MAX = (1 << SURE_BITS) - 1;
const CHECK_SHIFT = TOKEN_BITS + SURE_BITS;
const FACTOR = 0x2c1b3c6d;
const HASH_BITS = 31;
const ANY = 0;
/** The tokens before that a place depends on, at most. */
export const CONTEXT = 3;

/**
 * How often such a follower was right in replays, in parts of a thousand: of the own text, the group's, any; behind three
 * tokens, two, one; by how sure it is. The most likely is drafted.
 */
const ODDS = [
  ...[400, 583, 643, 827, 313, 505, 576, 798, 210, 397, 492, 758],
  ...[324, 472, 546, 794, 245, 410, 511, 768, 157, 337, 463, 707],
  ...[309, 464, 543, 791, 232, 395, 507, 765, 142, 325, 463, 704],
];
/** The same where it was the most likely one. */
const BEST_ODDS = [
  ...[244, 431, 471, 810, 210, 323, 383, 755, 146, 274, 344, 647],
  ...[312, 406, 446, 751, 245, 326, 359, 630, 186, 279, 306, 518],
  ...[181, 365, 392, 746, 170, 272, 362, 649, 169, 250, 340, 492],
];

/** Keys of one sequence: its own, and its group's. */
export interface Keys {
  readonly own: number;
  readonly group: number;
}

/** Far from tokens: behind a small key, a token would be found where another one is behind no key. */
export function keysOf(group: number, sampleIndex: number): Keys {
  const key = mixed(FACTOR, group);
  return { own: mixed(key, sampleIndex + 1), group: key };
}

export function mixed(hash: number, token: number): number {
  const product = Math.imul(hash ^ token, FACTOR) & (2 ** HASH_BITS - 1);
  return product ^ (product >>> 15);
}

export class Followers {
  readonly #words = new Int32Array(1 << WORDS_BITS);
  /** The places of a key's words behind three tokens, two and one, and what tells them from others'. */
  readonly #places = new Int32Array(CONTEXT);
  readonly #checks = new Int32Array(CONTEXT);

  /** `token` followed the CONTEXT tokens of `tail`. */
  take(keys: Keys, tail: readonly number[], token: number): void {
    for (const key of [keys.own, keys.group, ANY]) {
      this.#find(key, tail);
      for (const [i, place] of this.#places.entries())
        this.#raise(place, this.#checks[i] ?? 0, token);
    }
  }

  /** The likeliest follower of the CONTEXT tokens of `tail`; null: none is known. */
  next(keys: Keys, tail: readonly number[]): { token: number; probability: number } | null {
    let best = -1;
    let found = 0;
    for (const [source, key] of [keys.own, keys.group, ANY].entries()) {
      this.#find(key, tail);
      for (const [i, place] of this.#places.entries()) {
        const word = this.#words[place] ?? 0;
        if (word === 0 || word >> CHECK_SHIFT !== this.#checks[i]) continue;
        const kind = (CONTEXT * source + i) * (SURE_MAX + 1) + ((word >> TOKEN_BITS) & SURE_MAX);
        if (best < 0 || (ODDS[kind] ?? 0) > (ODDS[best] ?? 0)) [best, found] = [kind, word];
      }
    }
    if (best < 0) return null;
    return { token: found & (2 ** TOKEN_BITS - 1), probability: (BEST_ODDS[best] ?? 0) / 1000 };
  }

  #raise(place: number, check: number, token: number): void {
    const word = this.#words[place] ?? 0;
    const isKnown = word !== 0 && word >> CHECK_SHIFT === check;
    const sure = (word >> TOKEN_BITS) & SURE_MAX;
    const held = word & (2 ** TOKEN_BITS - 1);
    let now = 0;
    if (isKnown && held === token) now = Math.min(sure + 1, SURE_MAX);
    else if (isKnown && sure > 0) now = sure - 1;
    const kept = isKnown && sure > 0 ? held : token;
    this.#words[place] = kept | (now << TOKEN_BITS) | (check << CHECK_SHIFT);
  }

  #find(key: number, [third = 0, second = 0, first = 0]: readonly number[]): void {
    let hash = key;
    for (const [i, token] of [first, second, third].entries()) {
      hash = mixed(hash, token);
      this.#places[CONTEXT - 1 - i] = hash >>> (HASH_BITS - WORDS_BITS);
      this.#checks[CONTEXT - 1 - i] = hash & 255;
    }
  }
}
