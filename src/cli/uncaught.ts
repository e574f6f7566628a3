// The last net of a process that serves many: an error that nobody caught is told, and ends neither the process nor
// anybody's request. What comes again and again is no accident: then the process ends, for whoever keeps it to start it
// anew, in place of serving in a state that nobody has thought of.

import { EXIT_FAILED } from "./exit.ts";
import type { Log } from "./log.ts";

const FAULTS_MAX = 16;
const WINDOW_MS = 60_000;

/** Returns what takes the net away. */
export function catchUncaught(
  log: Log,
  exit: (status: number) => void = (status) => process.exit(status),
): () => void {
  let times: number[] = [];
  const caught = (event: string, error: unknown) => {
    const told = error instanceof Error ? (error.stack ?? error.message) : String(error);
    log("error", event, { error: told });
    const nowMs = performance.now();
    times = [...times.filter((atMs) => nowMs - atMs < WINDOW_MS), nowMs];
    if (times.length <= FAULTS_MAX) return;
    log("error", "broken", { error: `${times.length} such errors in ${WINDOW_MS / 1000} s` });
    exit(EXIT_FAILED);
  };
  const uncaught = (error: unknown) => caught("uncaught", error);
  const rejected = (error: unknown) => caught("unhandled_rejection", error);
  process.on("uncaughtException", uncaught);
  process.on("unhandledRejection", rejected);
  return () => {
    process.off("uncaughtException", uncaught);
    process.off("unhandledRejection", rejected);
  };
}
