// Signals that stop a serving command: SIGINT, SIGTERM, the end of the package runner that started it, and the end of
// the process that `--parent` names.

import { whenLauncherEnds, whenProcessEnds } from "./launcher.ts";

/** The first signal drains what is in flight, the second ends everything. */
export interface Signals {
  readonly first: Promise<void>;
  readonly second: Promise<void>;
}

/**
 * The first SIGINT or SIGTERM, and the one after it. A runner's end counts as the first, if none came before. The end
 * of process `parent` counts as both: its requests are its own.
 */
export function untilSignal(parent: number | null): Signals {
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
  whenLauncherEnds(() => {
    // A terminal's interrupt reaches the runner and this process alike.
    if (count === 0) onSignal();
  });
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
    whenLauncherEnds(stop);
  });
}
