// Writes each event of a sidecar as a line of the log, uncaught errors of a serving process too: these end neither the
// process nor a request, unless many occur within a minute; then a supervisor restarts it.

import { ADAPTER_CONTROL } from "../adapters/list.ts";
import type { OperatorLog } from "../compose/operator-log.ts";
import { errorText } from "../core/base/errors.ts";
import type { IterationSummary } from "../core/rollout/iteration-span.ts";
import { CONTROL_ROUTES } from "../server/control/routes.ts";
import type { OpenStream } from "../server/http.ts";
import { rounded } from "../server/live/waiting.ts";
import { WORKER_ROUTES } from "../server/worker-registry.ts";
import { errorWithStack, type Log, type LogFields } from "./log.ts";
import { EXIT_FAILED } from "./output.ts";

const CONTROL = [...CONTROL_ROUTES, ...ADAPTER_CONTROL];
const CONTROL_PATHS = new Set([...CONTROL, ...WORKER_ROUTES].map(({ path }) => path));
const PROBE_PATHS: ReadonlySet<string> = new Set(
  CONTROL.filter(({ isProbe }) => isProbe).map(({ path }) => path),
);

/** `broken` is called with the error that ended the rollout. */
export function operatorLog(log: Log, broken: (error: unknown) => void): OperatorLog {
  return {
    ...life(log),
    workerChanged: ({ source, state, reason }) =>
      log(state === "ready" ? "info" : "warn", "worker", { worker: source.name, state, reason }),
    engineNotice: (worker, { kind, ...fields }) =>
      log("warn", `worker_${kind}`, { worker, ...fields }),
    draftsTested: (worker, state, reason) => log("info", "drafts", { worker, state, reason }),
    modelUnknown: (reason) => log("warn", "model_unknown", { reason }),
    weightsChanged: (epoch, version) => log("info", "weights", { epoch, version }),
    weightsNotice: ({ kind, ...fields }) =>
      log(kind === "learned" ? "info" : "warn", `weights_${kind}`, fields),
    weightsHeld: (seconds) => log("debug", "weights_held", { seconds: rounded(seconds) }),
    // One for every chat: the metrics count them.
    chatRendered: () => {},
    notLossless: (engine, reason) => log("error", "not_lossless", { engine, reason }),
    chatProblem: (problem) => log("warn", "chat_template", { problem }),
    quarantined: (reason) => log("error", "quarantined", { reason }),
    waitEnded: (reason) => log("warn", "wait_ended", { reason }),
    answered: ({ status, ms, method, asked, ...rest }) => {
      const { path } = rest;
      const isProbe = PROBE_PATHS.has(path);
      // What may change what is served: all but the probes of load balancers.
      const isControl = (CONTROL_PATHS.has(path) && !isProbe) || path.startsWith("/workers/");
      if (method !== "GET" && isControl) {
        const fields = { status, ms: Math.round(ms), ...rest, asked };
        log(status < 400 ? "info" : "warn", "control", fields);
        return;
      }
      const entry = { method, ...rest };
      // One who asks every second would fill the log; changes of the state have lines of their own.
      const level = isProbe || status < 400 ? "debug" : status >= 500 ? "warn" : "info";
      log(level, "answered", { status, ms: Math.round(ms), ...entry });
    },
    refused: (entry) => log("warn", "refused", { ...entry }),
    iterationEnded: (summary) => log("info", "iteration", iterationFields(summary)),
    stateChanged: ({ state, reason, waiting, seconds }) =>
      log(state === "serving" ? "info" : "warn", "state", {
        state,
        ...(reason === null ? {} : { reason }),
        waiting,
        seconds,
      }),
    resumed: (rollouts) => log("info", "resumed", { rollouts }),
    journalFailed: (error) =>
      log("error", "journal", {
        reason: errorText(error),
        consequence: "its rollout goes on without a journal",
      }),
    unread: (streams) => {
      log("warn", "waiting_for_readers", { streams: streams.length });
      logUnread(log, streams);
    },
    failed: (error) => log("error", "failed", { error: errorWithStack(error) }),
    broken: (error) => {
      log("error", "broken", { error: errorWithStack(error) });
      broken(error);
    },
  };
}

/** Steps in the life of a serving process. */
function life(
  log: Log,
): Pick<OperatorLog, "listening" | "ready" | "stopping" | "draining" | "stopped"> {
  let isAnnounced = false;
  return {
    listening: ({ origin }) => log("info", "listening", { url: origin }),
    ready: ({ origin }) => {
      if (!isAnnounced) console.log(`foretoken on ${origin}`);
      isAnnounced = true;
    },
    stopping: (state) => log("info", "stopping", { state }),
    draining: (unfinished, seconds) => log("info", "draining", { unfinished, seconds }),
    stopped: (ending, unfinished, streams) => {
      logUnread(log, streams);
      const outcome = typeof ending === "string" ? ending : errorWithStack(ending.error);
      const level = ending === "drained" ? "info" : "warn";
      log(level, "stopped", { outcome, unfinished, streams: streams.length });
    },
  };
}

/** Log lines that name a client that does not read, per warning. */
const UNREAD_LOGGED_MAX = 10;

function logUnread(log: Log, streams: readonly OpenStream[]): void {
  for (const { id, method, path, client, takenMs } of streams.slice(0, UNREAD_LOGGED_MAX)) {
    const seconds = rounded((performance.now() - takenMs) / 1000);
    log("warn", "not_read", { method, path, id, client, seconds });
  }
}

function iterationFields(summary: IterationSummary): LogFields {
  const { figures } = summary;
  return {
    weight_epoch: summary.weightEpoch,
    requests: figures.requests,
    tokens: figures.output_tokens,
    seconds: rounded(summary.seconds),
    tokens_per_s: rounded(summary.tokensPerS),
    tail_s: rounded(summary.tailS),
    preemptions: figures.preemptions,
    restarts: figures.restarts,
    failures: figures.failed_requests,
    aborted: figures.aborted_requests,
    unfinished: summary.unfinished,
  };
}

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
