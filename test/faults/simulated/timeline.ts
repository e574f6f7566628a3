// What is due at which virtual time: a binary heap. Equal times come out in the order they went in, so that a run
// depends on nothing but its seed.

interface Entry<T> {
  readonly atMs: number;
  readonly order: number;
  readonly value: T;
}

export class Timeline<T> {
  readonly #heap: Entry<T>[] = [];
  #order = 0;

  /** Infinity: nothing is due any more. */
  get nextMs(): number {
    return this.#heap[0]?.atMs ?? Number.POSITIVE_INFINITY;
  }

  add(atMs: number, value: T): void {
    this.#heap.push({ atMs, order: this.#order, value });
    this.#order += 1;
    let at = this.#heap.length - 1;
    while (at > 0) {
      const parent = (at - 1) >> 1;
      if (!this.#isBefore(at, parent)) return;
      this.#swap(at, parent);
      at = parent;
    }
  }

  /** The next one; null: none. */
  take(): T | null {
    const first = this.#heap[0];
    const last = this.#heap.pop();
    if (first === undefined || last === undefined) return null;
    if (this.#heap.length > 0) {
      this.#heap[0] = last;
      this.#sink();
    }
    return first.value;
  }

  #sink(): void {
    let at = 0;
    for (;;) {
      let least = at;
      for (const child of [2 * at + 1, 2 * at + 2]) {
        if (child < this.#heap.length && this.#isBefore(child, least)) least = child;
      }
      if (least === at) return;
      this.#swap(at, least);
      at = least;
    }
  }

  #isBefore(a: number, b: number): boolean {
    const x = this.#heap[a];
    const y = this.#heap[b];
    if (x === undefined || y === undefined) return false;
    return x.atMs !== y.atMs ? x.atMs < y.atMs : x.order < y.order;
  }

  #swap(a: number, b: number): void {
    const x = this.#heap[a];
    const y = this.#heap[b];
    if (x === undefined || y === undefined) return;
    this.#heap[a] = y;
    this.#heap[b] = x;
  }
}
