// This machine's clock, random numbers and errors.

import type { Clock } from "../core/base/clock.ts";

export const wallClock: Clock = { nowMs: () => performance.now() };

/** 32 random bits of the operating system. */
export function randomWord(): number {
  return crypto.getRandomValues(new Uint32Array(1))[0] ?? 0;
}

/** The operating system's code of an error ("ENOENT"), or an AppError's; empty: it has none. */
export function codeOf(error: unknown): string {
  return String(Object(error).code ?? "");
}
