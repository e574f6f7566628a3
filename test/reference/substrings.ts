// Every substring of the texts of a group, counted one token at a time, with who wrote its latest occurrence and what
// followed it, in the order in which that first came. For twins: each token costs the square of its text's length.

interface Substring {
  count: number;
  source: number;
  readonly next: Map<number, number>;
}

/** Writers: sequences by index modulo SOURCES, and earlier epochs. */
export const SOURCES = 128;
export const HISTORY = 129;

const NEVER: Substring = { count: 0, source: -1, next: new Map() };

export class Substrings {
  readonly #all = new Map<string, Substring>([["", { count: 0, source: -1, next: new Map() }]]);

  /** The last token of `text` has been written by `source`; history is no writer of what a sequence has written. */
  add(text: readonly number[], source: number): void {
    const token = text.at(-1);
    if (token === undefined) return;
    for (let from = 0; from <= text.length; from += 1) {
      const substring = this.#made(text.slice(from));
      substring.count += 1;
      const isLate = source === HISTORY && substring.source >= 0 && substring.source < SOURCES;
      if (!isLate) substring.source = source;
      if (from === text.length) continue;
      const { next } = this.#made(text.slice(from, -1));
      next.set(token, (next.get(token) ?? 0) + 1);
    }
  }

  of(text: readonly number[]): Substring {
    return this.#all.get(text.join(",")) ?? NEVER;
  }

  has(text: readonly number[]): boolean {
    return this.of(text).count > 0;
  }

  /** The most frequent continuation, the lowest token on ties; null if there is none. */
  best(text: readonly number[]): number | null {
    let best: number | null = null;
    let count = 0;
    for (const [token, n] of this.of(text).next) {
      if (n > count || (n === count && best !== null && token < best)) [best, count] = [token, n];
    }
    return best;
  }

  /** The longest string that ends wherever `text` does: a state of the automaton is named by it. */
  longest(text: readonly number[]): number[] {
    const { count } = this.of(text);
    if (text.length === 0) return [];
    for (const token of this.of([]).next.keys()) {
      const longer = [token, ...text];
      if (this.of(longer).count === count) return this.longest(longer);
    }
    return [...text];
  }

  /** One suffix of `text` for each set of places where suffixes end, longest first, without the empty one. */
  suffixStates(text: readonly number[]): number[][] {
    const suffixes = text.map((_, from) => text.slice(from));
    return suffixes.filter(
      (suffix, from) => from === 0 || this.of(suffix).count !== this.of(text.slice(from - 1)).count,
    );
  }

  #made(text: readonly number[]): Substring {
    const key = text.join(",");
    const substring = this.#all.get(key) ?? { count: 0, source: -1, next: new Map() };
    this.#all.set(key, substring);
    return substring;
  }
}
