// When an iteration of a trainer ends. Trainers send requests and update weights, but do not announce iterations: one
// begins with the first request after the last one's end, and ends when the weights advance, when nothing has run for
// a while, or with a rollout of /v1/rollouts, which is a whole iteration. The rollout's meter counts what happens in it.

import type { Later } from "../core/base/clock.ts";
import type { IterationSummary } from "../core/rollout/iteration-span.ts";
import type { Sidecar } from "./sidecar.ts";

export interface IterationOptions {
  readonly sidecar: Sidecar;
  readonly later: Later;
  readonly ended: (summary: IterationSummary) => void;
}

/** Time without a request after which an iteration is over, even without a weight update. */
const IDLE_MS = 60_000;

export class Iterations {
  readonly #options: IterationOptions;
  #cancelIdle: (() => void) | null = null;

  constructor(options: IterationOptions) {
    this.#options = options;
    const { sidecar, later } = options;
    sidecar.observe({
      joined: () => this.#goesOn(),
      finished: () => {
        if (sidecar.rollout.unfinished > 0) return;
        this.#goesOn();
        this.#cancelIdle = later(() => this.end(), IDLE_MS);
      },
      advanced: () => this.end(),
      rolloutOver: () => {
        if (sidecar.rollout.unfinished === 0) this.end();
      },
    });
  }

  end(): void {
    this.#goesOn();
    const summary = this.#options.sidecar.rollout.meter.endIteration();
    if (summary !== null) this.#options.ended(summary);
  }

  #goesOn(): void {
    this.#cancelIdle?.();
    this.#cancelIdle = null;
  }
}
