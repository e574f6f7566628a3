// One operation of one engine, which always ends: by its answer, its failure, a deadline, or an abort. All operations
// pass here, so that nothing waits for an engine that never answers.

import type { WeightEpoch } from "../core/base/ids.ts";
import type { RolloutListener } from "../core/rollout/listener.ts";
import {
  type ControlAnswer,
  type EngineOperation,
  operationName,
} from "../core/rollout/operation.ts";
import type { Rollout } from "../core/rollout/rollout.ts";
import type { Worker } from "../core/rollout/worker.ts";
import type { Wait, Waits } from "./waits.ts";

/** The engine could not be reached, or the connection ended before the answer: see ControlAnswer. */
export const UNREACHABLE = 502;
/** The engine has not answered in time: whether the operation was carried out is unknown. */
export const SILENT = 504;
/** Statuses after which an engine is opened again: it is not there, its state is unknown, or it has no room now (503). */
const UNAVAILABLE: readonly number[] = [UNREACHABLE, 503, SILENT];

export function isUnavailable({ status }: ControlAnswer): boolean {
  return UNAVAILABLE.includes(status);
}

/** The side of the sidecar that the fleet needs. The fleet never sees requests or clients. */
export interface FleetHost {
  readonly rollout: Rollout;
  readonly waits: Waits;
  /** Returns what ends the observation. */
  observe(observer: FleetObserver): () => void;
  /** Begins the next weight epoch. */
  advance(epoch: WeightEpoch): void;
  /** Unfinished requests of the adapter. */
  unfinishedOf(adapter: string): number;
}

type FleetObserver = Partial<Pick<RolloutListener, "workerFailed" | "stats">> & {
  advanced?(): void;
};

export interface AnswerLimits {
  readonly msMax: number;
  readonly later: (act: () => void, ms: number) => () => void;
  /** Source of events about failed workers; null: none. */
  readonly sidecar: FleetHost | null;
  /** Ends the wait for the answer when it aborts. */
  readonly signal?: AbortSignal;
  /** Whether its connection is lost and being made again; default: no. */
  readonly isLost?: () => boolean;
}

/** Time after which an engine with a lost connection is not waited for: its requests have moved by then. */
const LOST_MS_MAX = 5_000;
const LOST_POLL_MS = 1_000;

export interface Asked {
  readonly operation: EngineOperation;
  readonly nextEpoch: WeightEpoch;
}

/** Never rejects. */
export function answerOf(
  worker: Worker,
  { operation, nextEpoch }: Asked,
  { msMax, later, sidecar, signal, isLost }: AnswerLimits,
): Promise<ControlAnswer> {
  return new Promise((resolve) => {
    const ends: (() => void)[] = [];
    const hasAnswered = sidecar?.waits.begin(waitOf(worker, operation, msMax));
    const settle = (answer: ControlAnswer) => {
      hasAnswered?.();
      for (const end of ends.splice(0)) end();
      resolve(answer);
    };
    const failed = (status: number, error: string) => settle({ status, body: { error } });
    ends.push(later(() => failed(SILENT, `no answer within ${msMax / 1000} s`), msMax));
    if (isLost !== undefined) {
      ends.push(whileLost({ later, isLost }, () => failed(UNREACHABLE, "its connection is lost")));
    }
    if (sidecar !== null) {
      const workerFailed = (gone: Worker, message: string) => {
        if (gone === worker) failed(UNREACHABLE, message);
      };
      ends.push(sidecar.observe({ workerFailed }));
    }
    if (signal !== undefined) {
      const give = () => failed(SILENT, "given up before it had answered");
      signal.addEventListener("abort", give, { once: true });
      ends.push(() => signal.removeEventListener("abort", give));
      if (signal.aborted) return give();
    }
    worker.perform(operation, nextEpoch).then(settle, (error: unknown) => {
      failed(500, error instanceof Error ? error.message : String(error));
    });
  });
}

function waitOf({ workerId }: Worker, operation: EngineOperation, msMax: number): Wait {
  const what = operationName(operation);
  const isCanary = operation.kind === "canary";
  const reason = isCanary ? "it has not generated the canary's tokens" : "it has not answered";
  return { what, forWhom: `engine ${workerId}`, reason, msMax };
}

/** Calls `act` once the connection has been lost for too long; returns what ends the watch. */
function whileLost(
  { later, isLost }: { later: AnswerLimits["later"]; isLost: () => boolean },
  act: () => void,
): () => void {
  let lostMs = 0;
  let cancel = () => {};
  const look = () => {
    lostMs = isLost() ? lostMs + LOST_POLL_MS : 0;
    if (lostMs >= LOST_MS_MAX) act();
    else cancel = later(look, LOST_POLL_MS);
  };
  cancel = later(look, LOST_POLL_MS);
  return () => cancel();
}

const REASON_CHARACTERS = 500;

export function reasonOf(body: unknown): string {
  const { error = body } = Object(body);
  const { message = error } = Object(error);
  const text = typeof message === "string" ? message : JSON.stringify(message);
  return (text ?? "no reason").slice(0, REASON_CHARACTERS);
}
