// The slow, obvious twin of the core's heap: a map of keys, sorted whenever somebody asks.

export class HeapTwin {
  readonly keys = new Map<number, number>();

  /** Ids by (key, id). */
  sorted(): number[] {
    return [...this.keys].toSorted(([a, x], [b, y]) => x - y || a - b).map(([id]) => id);
  }

  peek(): number | null {
    return this.sorted()[0] ?? null;
  }

  pop(): number | null {
    const id = this.peek();
    if (id !== null) this.keys.delete(id);
    return id;
  }
}
