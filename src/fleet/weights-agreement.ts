// Whether the engines of one weight epoch have the same weights. Engines that know them name theirs by precision and
// digest; one that differs from the others does not serve. It decides only: the pool fences. An engine without such a
// name (a vLLM server) is not compared.

import type { WeightsId } from "../core/base/ids.ts";

/** An engine's name for people, and its weights. */
export interface NamedWeights {
  readonly name: string;
  readonly weights: WeightsId | null;
}

export class WeightsAgreement {
  /** The member that others are compared with in this epoch; null: no engine with a name serves. */
  #reference: NamedWeights | null = null;

  /** A new epoch begins with the weights that most of these engines have, of several the first one's. */
  begin(engines: readonly NamedWeights[]): void {
    const named = engines.filter(({ weights }) => weights !== null);
    const countOf = (one: NamedWeights) =>
      named.filter(({ weights }) => weights === one.weights).length;
    const most = Math.max(0, ...named.map(countOf));
    this.#reference = named.find((one) => countOf(one) === most) ?? null;
  }

  /** The weights that engines are compared with; null: none are known. */
  get weights(): WeightsId | null {
    return this.#reference?.weights ?? null;
  }

  /** Why the engine may not serve; null: it may. */
  difference({ weights }: NamedWeights): string | null {
    const reference = this.#reference;
    if (weights === null || reference === null || weights === reference.weights) return null;
    const others = `${reference.name} has ${reference.weights}`;
    return `has weights ${weights}, ${others}: engines of one weight epoch have the same`;
  }

  /** The engine serves: what it has does so from now on. */
  accept(engine: NamedWeights): void {
    if (engine.weights !== null) this.#reference ??= engine;
  }
}
