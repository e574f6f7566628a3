// This machine's clock and random numbers.

import type { Clock } from "../core/base/clock.ts";

export const wallClock: Clock = { nowMs: () => performance.now() };

/** 32 random bits of the operating system. */
export function randomWord(): number {
  return crypto.getRandomValues(new Uint32Array(1))[0] ?? 0;
}
