// The events that an operator wants to know of a server, and the line that each is in the log. Metrics and the page read some
// of them as well.

import { ADAPTER_CONTROL } from "../adapters/list.ts";
import { errorText } from "../core/base/errors.ts";
import type { IterationSummary } from "../core/rollout/iteration-span.ts";
import type { EngineNotice } from "../engines/kind.ts";
import type { Member } from "../fleet/engines.ts";
import type { WeightsNotice } from "../fleet/updates.ts";
import { CONTROL_ROUTES } from "../server/control/routes.ts";
import type { AccessEntry, OpenStream } from "../server/http.ts";
import { rounded, type ServingState } from "../server/live/waiting.ts";
import type { RenderedBy } from "../server/openai/rendering.ts";
import { WORKER_ROUTES } from "../server/worker-registry.ts";
import { errorWithStack, type Log } from "./log.ts";

const CONTROL = [...CONTROL_ROUTES, ...ADAPTER_CONTROL];
const CONTROL_PATHS = new Set([...CONTROL, ...WORKER_ROUTES].map(({ path }) => path));
const PROBE_PATHS: ReadonlySet<string> = new Set(
  CONTROL.filter(({ isProbe }) => isProbe).map(({ path }) => path),
);

/** How serving ended. interrupted: before anything was served. time_up: requests in flight did not end in time. */
export type Ending = "interrupted" | "drained" | "second_signal" | "time_up" | { error: unknown };

export type OperatorLog = ReturnType<typeof operatorLog>;

/** `broken` is called with the error that ended the rollout. */
export function operatorLog(log: Log, broken: (error: unknown) => void) {
  return {
    ...lifeLog(log),
    workerChanged: ({ source, state, reason }: Member) =>
      log(state === "ready" ? "info" : "warn", "worker", { worker: source.name, state, reason }),
    engineNotice: (worker: string, { kind, ...fields }: EngineNotice) =>
      log("warn", `worker_${kind}`, { worker, ...fields }),
    /** A server that drafts by itself was tested before it serves. */
    draftsTested: (worker: string, state: string, reason: string) =>
      log("info", "drafts", { worker, state, reason }),
    /** No server has reported its model yet. */
    modelUnknown: (reason: string) => log("warn", "model_unknown", { reason }),
    weightsChanged: (epoch: number, version: string) => log("info", "weights", { epoch, version }),
    weightsNotice: ({ kind, ...fields }: WeightsNotice) =>
      log(kind === "learned" ? "info" : "warn", `weights_${kind}`, fields),
    /** A weight update has held generation for this time. */
    weightsHeld: (seconds: number) => log("debug", "weights_held", { seconds: rounded(seconds) }),
    /** A chat has been rendered as a prompt, in this time. One for every chat: the metrics count them. */
    chatRendered: (_by: RenderedBy, _seconds: number) => {},
    /** The model's chat template uses something that this engine of templates does not have. */
    chatProblem: (problem: string) => log("warn", "chat_template", { problem }),
    /** An engine's plugin or its output shows that its sampler verifies drafts wrongly: it gets no drafts. */
    notLossless: (engine: string, reason: string) =>
      log("error", "not_lossless", { engine, reason }),
    /** A request that made workers die was ended. `reason` names it and them. */
    quarantined: (reason: string) => log("error", "quarantined", { reason }),
    answered: (entry: AccessEntry) => logAnswer(log, entry),
    /** A request was ended with an error that an engine reported, or that is an engine's fault. */
    refused: (entry: RefusedEntry) => log("warn", "refused", { ...entry }),
    iterationEnded: (summary: IterationSummary) =>
      log("info", "iteration", iterationFields(summary)),
    /** The serving state has changed. Also called every minute while requests wait for it. */
    stateChanged: (now: ServingState & { waiting: number; seconds: number }) => {
      const { state, reason, waiting, seconds } = now;
      const why = reason === null ? {} : { reason };
      log(state === "serving" ? "info" : "warn", "state", { state, ...why, waiting, seconds });
    },
    /** Rollouts of an earlier process have gone on. */
    resumed: (rollouts: number) => log("info", "resumed", { rollouts }),
    /** A journal is not written any more; its rollout goes on without it. */
    journalFailed: (error: unknown) => {
      const consequence = "its rollout goes on without a journal";
      log("error", "journal", { reason: errorText(error), consequence });
    },
    /** A wait of the rollout has reached its bound; `reason` names both, and what was given up. */
    waitEnded: (reason: string) => log("warn", "wait_ended", { reason }),
    /** All responses are generated, but these clients have not read theirs: the server stops when they have, or stall. */
    unread: (streams: readonly OpenStream[]) => {
      log("warn", "waiting_for_readers", { streams: streams.length });
      logUnread(log, streams);
    },
    failed: (error: unknown) => log("error", "failed", { error: errorWithStack(error) }),
    /** A bug stopped the rollout: nothing can be served any more. */
    broken: (error: unknown) => {
      log("error", "broken", { error: errorWithStack(error) });
      broken(error);
    },
  };
}

/** Steps in the life of a serving process. */
function lifeLog(log: Log) {
  let isAnnounced = false;
  return {
    listening: ({ origin }: URL) => log("info", "listening", { url: origin }),
    /** Every engine has been tried once, or none is known yet: for scripts that wait. May be called again. */
    ready: ({ origin }: URL) => {
      if (!isAnnounced) console.log(`foretoken on ${origin}`);
      isAnnounced = true;
    },
    stopping: (state: "waiting for the model" | "opening workers") =>
      log("info", "stopping", { state }),
    draining: (unfinished: number, seconds: number) =>
      log("info", "draining", { unfinished, seconds }),
    stopped: (ending: Ending, unfinished: number, streams: readonly OpenStream[]) => {
      logUnread(log, streams);
      const outcome = typeof ending === "string" ? ending : errorWithStack(ending.error);
      const level = ending === "drained" ? "info" : "warn";
      log(level, "stopped", { outcome, unfinished, streams: streams.length });
    },
  };
}

function logAnswer(log: Log, { status, ms, method, asked, ...rest }: AccessEntry): void {
  const { path } = rest;
  const isProbe = PROBE_PATHS.has(path);
  // What may change what is served: all but the probes of load balancers.
  const isControl = (CONTROL_PATHS.has(path) && !isProbe) || path.startsWith("/workers/");
  if (method !== "GET" && isControl) {
    const fields = { status, ms: Math.round(ms), ...rest, asked };
    log(status < 400 ? "info" : "warn", "control", fields);
    return;
  }
  // One who asks every second would fill the log; changes of the state have lines of their own.
  const level = isProbe || status < 400 ? "debug" : status >= 500 ? "warn" : "info";
  log(level, "answered", { status, ms: Math.round(ms), method, ...rest });
}

/** Log lines that name a client that does not read, per warning. */
const UNREAD_LOGGED_MAX = 10;

function logUnread(log: Log, streams: readonly OpenStream[]): void {
  for (const { id, method, path, client, takenMs } of streams.slice(0, UNREAD_LOGGED_MAX)) {
    const seconds = rounded((performance.now() - takenMs) / 1000);
    log("warn", "not_read", { method, path, id, client, seconds });
  }
}

function iterationFields(summary: IterationSummary) {
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

export interface RefusedEntry {
  /** Number of the request. */
  readonly request: number;
  readonly worker: string | null;
  /** HTTP status of the engine's answer; 0: not known. */
  readonly status: number;
  readonly reason: string;
}

/** Passes each event to several readers, in the order in which they were added. An error of one does not affect the others. */
export class OperatorFeed {
  /** The log that passes events on to all readers. */
  readonly log: OperatorLog;
  readonly #readers: Partial<OperatorLog>[];

  /** `operator`: the first reader, which also gets the errors that others throw. */
  constructor(operator: OperatorLog) {
    this.#readers = [operator];
    const relays = new Map<PropertyKey, (...given: unknown[]) => void>();
    const relayOf = (_: object, event: PropertyKey) =>
      relays.getOrInsertComputed(event, () => this.#relay(event, operator));
    this.log = new Proxy({}, { get: relayOf }) as OperatorLog;
  }

  add(reader: Partial<OperatorLog>): void {
    this.#readers.push(reader);
  }

  #relay(event: PropertyKey, operator: OperatorLog) {
    return (...given: unknown[]) => {
      for (const reader of this.#readers) {
        try {
          Reflect.get(reader, event)?.apply(reader, given);
        } catch (error) {
          operator.failed(error);
        }
      }
    };
  }
}
