// Time as a vLLM worker uses it: the only file of the folder that names a clock or a timer.

import type { Clock } from "../../core/base/clock.ts";
import { contain } from "../../core/base/contain.ts";

export interface TimerClock extends Clock {
  /** Runs `what` once, after `ms`; 0: after the I/O of this turn. The result cancels it. */
  after(ms: number, what: () => void): () => void;
}

export const wallTimers: TimerClock = {
  nowMs: () => performance.now(),
  after(ms, what) {
    if (ms === 0) {
      const immediate = setImmediate(what);
      return () => clearImmediate(immediate);
    }
    const timer = setTimeout(what, ms);
    return () => clearTimeout(timer);
  },
};

/** The same clock; errors of its timers go to `failed`. */
export function contained(clock: TimerClock, failed: (error: unknown) => void): TimerClock {
  return {
    nowMs: () => clock.nowMs(),
    after: (ms, what) => clock.after(ms, () => contain(what, failed)),
  };
}

/** Resolves after `ms`. */
export function pause(clock: TimerClock, ms: number): Promise<void> {
  return new Promise((resolve) => {
    clock.after(ms, resolve);
  });
}
