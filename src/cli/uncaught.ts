// Handles uncaught errors of a serving process: each is logged and ends neither the process nor a request. If many occur
// within a minute the process ends, so that a supervisor restarts it instead of leaving it in an unknown state.

import { errorWithStack } from "../core/base/errors.ts";
import { EXIT_FAILED } from "./exit.ts";
import type { Log } from "./log.ts";

const FAULTS_MAX = 16;
const WINDOW_MS = 60_000;

/** `also` is called with each as well. Returns a function that removes the handlers. */
export function catchUncaught(
  log: Log,
  also: (error: unknown) => void = () => {},
  faultsMax = FAULTS_MAX,
): () => void {
  let times: number[] = [];
  const caught = (event: string, error: unknown) => {
    log("error", event, { error: errorWithStack(error) });
    also(error);
    const nowMs = performance.now();
    times = [...times.filter((atMs) => nowMs - atMs < WINDOW_MS), nowMs];
    if (times.length <= faultsMax) return;
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
