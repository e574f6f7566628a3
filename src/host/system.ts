// The clock and the chance of this machine.

import type { Clock } from "../core/base/clock.ts";

export const wallClock: Clock = { nowMs: () => performance.now() };

/** 32 bits of the system's chance. */
export function randomWord(): number {
  return crypto.getRandomValues(new Uint32Array(1))[0] ?? 0;
}
