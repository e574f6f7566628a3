// Whether the engines of one weight epoch have the same weights. Engines that know them name theirs by precision and
// digest; one that differs from the others does not serve. It decides only: the pool fences. An engine without such a name (a vLLM server) is not compared.

import type { WeightsId } from "../core/base/ids.ts";

/** One engine: what people call it, and its weights. */
export interface Holding {
  readonly name: string;
  readonly weights: WeightsId | null;
}

export class WeightsAgreement {
  /** The member that others are compared with in this epoch; null: no engine with a name serves. */
  #reference: { readonly name: string; readonly weights: WeightsId } | null = null;

  /**
   * A new epoch begins with these engines: the weights that most of them have are right, or of several the first
   * one's.
   */
  begin(holdings: readonly Holding[]): void {
    this.#reference = null;
    const counts = new Map<WeightsId, number>();
    for (const { weights } of holdings) {
      if (weights !== null) counts.set(weights, (counts.get(weights) ?? 0) + 1);
    }
    const most = Math.max(0, ...counts.values());
    const first = holdings.find(({ weights }) => weights !== null && counts.get(weights) === most);
    if (first !== undefined) this.accept(first);
  }

  /** What others are compared with; null: none is known. */
  get weights(): WeightsId | null {
    return this.#reference?.weights ?? null;
  }

  /** The engine has weights that serve in this epoch. */
  includes(weights: WeightsId | null): boolean {
    return weights !== null && weights === this.weights;
  }

  /** Why the engine may not serve; null: it may. */
  difference({ weights }: Holding): string | null {
    const reference = this.#reference;
    if (weights === null || reference === null) return null;
    if (weights === reference.weights) return null;
    const others = `${reference.name} has ${reference.weights}`;
    return `has weights ${weights}, ${others}: engines of one weight epoch have the same`;
  }

  /** The engine serves: what it has does so from now on. */
  accept({ name, weights }: Holding): void {
    if (weights === null) return;
    this.#reference ??= { name, weights };
  }
}

/** Waits until all have arrived, or `end` is called. */
export class Gathering<T> {
  readonly #missing: Set<T>;
  readonly #over = Promise.withResolvers<void>();
  readonly #options: { readonly ended: () => void; readonly cancel: () => void };
  #isOver = false;

  /** `ended` is called once, before any waiter continues; `cancel` as well. */
  constructor(expected: Iterable<T>, options: { ended: () => void; cancel: () => void }) {
    this.#missing = new Set(expected);
    this.#options = options;
  }

  /** Resolves when it is over. */
  arrive(who: T): Promise<void> {
    this.#missing.delete(who);
    if (this.#missing.size === 0) this.end();
    return this.#over.promise;
  }

  end(): void {
    if (this.#isOver) return;
    this.#isOver = true;
    this.#options.cancel();
    this.#options.ended();
    this.#over.resolve();
  }
}
