// Uncaught errors of a serving process: they end neither the process nor a request, unless many occur within a minute; then
// a supervisor restarts it.

import { errorWithStack, type Log } from "../compose/log.ts";
import { EXIT_FAILED } from "./output.ts";

const FAULTS_MAX = 16;
const WINDOW_MS = 60_000;

/** Returns a function that removes the handlers. */
export function catchUncaught(log: Log): () => void {
  let times: number[] = [];
  const caught = (event: string, error: unknown) => {
    log("error", event, { error: errorWithStack(error) });
    const nowMs = performance.now();
    times = [...times.filter((atMs) => nowMs - atMs < WINDOW_MS), nowMs];
    if (times.length <= FAULTS_MAX) return;
    log("error", "broken", { error: `${times.length} such errors in ${WINDOW_MS / 1000} s` });
    process.exit(EXIT_FAILED);
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
