// The end of the process that FORETOKEN_PARENT numbers: a program that starts a server sets it (the Python package
// does), so that the server ends with it, also if it is killed.

import { readFileSync } from "node:fs";
import { AppError } from "../core/base/errors.ts";

const WATCH_MS = 200;

/** @throws AppError usage: FORETOKEN_PARENT is no number of a process. */
export function parentOf(env: Readonly<Record<string, string | undefined>>): number | null {
  const text = env.FORETOKEN_PARENT;
  if (text === undefined) return null;
  if (/^[1-9]\d{0,6}$/.test(text)) return Number(text);
  throw new AppError("usage", `FORETOKEN_PARENT is "${text}"; it is the number of a process`);
}

/** Calls `act` once when process `pid` has ended, also if it has already. */
export function whenProcessEnds(pid: number, act: () => void): void {
  const started = startOf(pid);
  const timer = setInterval(() => {
    if (started !== null && startOf(pid) === started) return;
    clearInterval(timer);
    act();
  }, WATCH_MS);
  timer.unref();
}

/** Ticks since the boot, which distinguish a process from a later one of its number; null: it has ended. */
function startOf(pid: number): string | null {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, "latin1");
    // The name, in parentheses, may hold anything.
    const [state, ...rest] = stat.slice(stat.lastIndexOf(")") + 2).split(" ");
    return state === "Z" || state === "X" ? null : (rest[18] ?? null);
  } catch {
    return null;
  }
}
