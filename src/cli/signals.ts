// Signals that stop a serving command: SIGINT, SIGTERM, and the end of the process that FORETOKEN_PARENT numbers.

import { parentOf, whenProcessEnds } from "./parent.ts";

/** The first signal drains what is in flight, the second ends everything. */
export interface Signals {
  readonly first: Promise<void>;
  readonly second: Promise<void>;
}

/**
 * The first SIGINT or SIGTERM, and the one after it. The end of the parent counts as both: its requests are its own.
 * @throws AppError usage: as parentOf.
 */
export function untilSignal(): Signals {
  const first = Promise.withResolvers<void>();
  const second = Promise.withResolvers<void>();
  let count = 0;
  const onSignal = () => {
    count += 1;
    if (count === 1) first.resolve();
    else second.resolve();
  };
  process.on("SIGINT", onSignal);
  process.on("SIGTERM", onSignal);
  const parent = parentOf(process.env);
  if (parent !== null) {
    whenProcessEnds(parent, () => {
      onSignal();
      onSignal();
    });
  }
  return { first: first.promise, second: second.promise };
}

/** The same, for commands with little to end: a second signal ends the process as it always does. */
export function untilStopSignal(): Promise<void> {
  return new Promise((resolve) => {
    const stop = () => {
      process.off("SIGINT", stop);
      process.off("SIGTERM", stop);
      resolve();
    };
    process.on("SIGINT", stop);
    process.on("SIGTERM", stop);
  });
}
