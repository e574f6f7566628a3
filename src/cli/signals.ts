// Signals that stop a command: SIGINT, SIGTERM, and the end of the process that FORETOKEN_PARENT numbers.

import { parentOf, whenProcessEnds } from "./parent.ts";

/** The first signal drains what is in flight, the second ends everything. */
export interface Signals {
  readonly first: Promise<void>;
  readonly second: Promise<void>;
  /** Signals end the process again, as they always do. */
  release(): void;
}

/**
 * The first SIGINT or SIGTERM, and the one after it. The end of the parent counts as both: its requests are its own.
 * @throws AppError usage: as parentOf.
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
  const parent = parentOf(process.env);
  if (parent !== null) {
    whenProcessEnds(parent, () => {
      onSignal();
      onSignal();
    });
  }
  return { first: first.promise, second: second.promise, release };
}

/** The first one, for commands with little to end: a second signal ends the process as it always does. */
export async function untilStopSignal(): Promise<void> {
  const { first, release } = untilSignal();
  await first;
  release();
}
