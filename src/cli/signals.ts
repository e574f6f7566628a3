// Signals that stop a command: SIGINT, SIGTERM, and the end of a process that FORETOKEN_PARENT or FORETOKEN_LAUNCHER numbers.

import { readFileSync } from "node:fs";
import { AppError } from "../core/base/errors.ts";

/** The first signal drains requests in flight, the second ends everything. */
export interface Signals {
  readonly first: Promise<void>;
  readonly second: Promise<void>;
  /** Removes the handlers: signals end the process again, as by default. */
  release(): void;
}

/**
 * The first SIGINT or SIGTERM, and the one after it. The end of the parent counts as both: its requests are its own.
 * That of the launcher (bin/foretoken) is the signal that ended it, which the terminal may have sent to both.
 * @throws AppError usage: as pidIn.
 */
export function untilSignal(): Signals {
  const first = Promise.withResolvers<void>();
  const second = Promise.withResolvers<void>();
  let isFirst = true;
  const onSignal = () => {
    if (isFirst) first.resolve();
    else second.resolve();
    isFirst = false;
  };
  const release = () => {
    process.off("SIGINT", onSignal);
    process.off("SIGTERM", onSignal);
  };
  process.on("SIGINT", onSignal);
  process.on("SIGTERM", onSignal);
  whenProcessEnds(pidIn("FORETOKEN_PARENT"), () => {
    onSignal();
    onSignal();
  });
  whenProcessEnds(pidIn("FORETOKEN_LAUNCHER"), () => {
    if (isFirst) onSignal();
  });
  return { first: first.promise, second: second.promise, release };
}

const WATCH_MS = 200;

/** The process number in an environment variable; null: it is not set. @throws AppError usage: it is no number. */
function pidIn(variable: string): number | null {
  const text = process.env[variable];
  if (text === undefined) return null;
  if (/^[1-9]\d{0,6}$/.test(text)) return Number(text);
  throw new AppError("usage", `${variable} is "${text}"; it is the number of a process`);
}

/** Calls `act` once when process `pid` has ended, even if it has already. null: there is no process to watch. */
function whenProcessEnds(pid: number | null, act: () => void): void {
  if (pid === null) return;
  const started = startOf(pid);
  const timer = setInterval(() => {
    if (started !== null && startOf(pid) === started) return;
    clearInterval(timer);
    act();
  }, WATCH_MS);
  timer.unref();
}

/** Start time in ticks since boot, which distinguishes a process from a later one with its number; null: it has ended. */
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
