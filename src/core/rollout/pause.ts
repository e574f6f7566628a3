// The pause of a rollout: its mode, the requests that came meanwhile, and the callers that wait for the pause to take
// effect. It schedules nothing; the rollout reads it.

import type { RolloutRequest } from "../request/buffer.ts";

/** keep: requests stay as they are. wait: those that are there finish first. abort: they are given up. */
export type PauseMode = "keep" | "wait" | "abort";

/** A pause that has not taken hold yet. */
interface Waiter {
  readonly isOver: () => boolean;
  readonly resolve: (hasTakenHold: boolean) => void;
}

export class Pause {
  /** null: it runs. */
  mode: PauseMode | null = null;
  readonly arrivals = new Set<RolloutRequest>();
  #waiters: Waiter[] = [];

  /** Resolves with true once `isOver` holds at a check of the pause; with false if generation resumed before. */
  until(isOver: () => boolean): Promise<boolean> {
    return new Promise((resolve) => {
      this.#waiters.push({ isOver, resolve });
    });
  }

  /** Resolves the pauses that have taken hold by now. */
  resolveOver(): void {
    if (this.#waiters.length === 0) return;
    const over = this.#waiters.filter((waiter) => waiter.isOver());
    this.#waiters = this.#waiters.filter((waiter) => !over.includes(waiter));
    for (const waiter of over) waiter.resolve(true);
  }

  resume(): readonly RolloutRequest[] {
    this.mode = null;
    const arrivals = [...this.arrivals];
    this.arrivals.clear();
    return arrivals;
  }

  /** Pauses that have not taken hold never do. */
  release(): void {
    for (const waiter of this.#waiters.splice(0)) waiter.resolve(false);
  }
}
