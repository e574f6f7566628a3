// What is due at which virtual time. Equal times come out in the order they went in, so that a run depends on nothing but
// its seed.

interface Entry<T> {
  readonly atMs: number;
  readonly value: T;
}

export class Timeline<T> {
  /** Ascending in time. */
  readonly #entries: Entry<T>[] = [];

  /** Infinity: nothing is due any more. */
  get nextMs(): number {
    return this.#entries[0]?.atMs ?? Number.POSITIVE_INFINITY;
  }

  add(atMs: number, value: T): void {
    const before = this.#entries.findLastIndex((entry) => entry.atMs <= atMs);
    this.#entries.splice(before + 1, 0, { atMs, value });
  }

  /** The next one; null: none. */
  take(): T | null {
    return this.#entries.shift()?.value ?? null;
  }
}
