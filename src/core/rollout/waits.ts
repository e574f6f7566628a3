// Waits of requests for what no other request gives them: an engine, the end of a pause, KV on its way. Each has a bound.
// At the bound requests are given up, with an error that names it; KV is given up, and computed again.

import type { Clock } from "../base/clock.ts";
import { type OpenWait, WAITS, waitMsMax } from "../base/waits.ts";
import type { Turns } from "./turns.ts";

const REASONS = {
  no_open_worker: "none is open",
  no_large_worker: "none has enough KV",
  paused_too_long: "generation is paused",
  // An engine hands KV out between two steps; a pool reads it from a disk.
  kv_out: "it has not handed it out",
  kv_in: "it has not read it",
} as const;

/** Waits that last as long as a state of the rollout. */
export type LastingWait = "no_open_worker" | "no_large_worker" | "paused_too_long";

export interface BoundedWaitsOptions {
  readonly clock: Clock;
  /** Absent: no wait has a bound, and none is counted. */
  readonly later: ((act: () => void, ms: number) => () => void) | undefined;
  readonly turns: Turns;
  /** A state has reached its bound: the requests that it holds up are to be given up. */
  readonly giveUp: (state: LastingWait, message: string) => void;
  /** Called for any wait at its bound, inside a turn. */
  readonly ended: (message: string) => void;
}

export class BoundedWaits {
  readonly #options: BoundedWaitsOptions;
  /** Open waits, and what cancels their bounds. */
  readonly #open = new Map<OpenWait, () => void>();
  readonly #states = new Map<LastingWait, () => void>();

  constructor(options: BoundedWaitsOptions) {
    this.#options = options;
  }

  /** Called in every turn with whether the state holds requests up. */
  lasts(state: LastingWait, isSo: boolean): void {
    const end = this.#states.get(state);
    if ((end !== undefined) === isSo) return;
    end?.();
    this.#states.delete(state);
    if (!isSo) return;
    const giveUp = (message: string): boolean => {
      this.#states.delete(state);
      this.#options.giveUp(state, message);
      return true;
    };
    this.#states.set(state, this.begin(state, "generation", giveUp));
  }

  /** Returns the end of the wait. `late`: called at the bound, inside a turn; false: nobody waits any more. */
  begin(name: keyof typeof REASONS, what: string, late: (message: string) => boolean): () => void {
    const { clock, later, turns, ended } = this.#options;
    if (later === undefined) return () => {};
    const { endedBy: forWhom, seconds } = WAITS[name];
    const reason = REASONS[name];
    const wait = { name, what, forWhom, reason, msMax: waitMsMax(name), sinceMs: clock.nowMs() };
    const cancel = later(() => {
      this.#open.delete(wait);
      const message = `${name}: ${what} waited ${seconds} s for ${forWhom}, the bound: ${reason}`;
      turns.run(() => late(message) && ended(message));
    }, wait.msMax);
    this.#open.set(wait, cancel);
    return () => {
      cancel();
      this.#open.delete(wait);
    };
  }

  clear(): void {
    for (const cancel of this.#open.values()) cancel();
    this.#open.clear();
    this.#states.clear();
  }

  get open(): OpenWait[] {
    return [...this.#open.keys()];
  }
}
