// The listener of a rollout, and the guard around it: an error that a listener throws is a failure of the client behind
// it. It is reported, the request of the call is ended, and all others continue.

import { contain } from "../base/contain.ts";
import type { WorkerId } from "../base/ids.ts";
import type { Group, Request } from "../request/buffer.ts";
import type { Worker, WorkerStats } from "./worker.ts";

/** Gets all events, in order, inside the turn in which they occur. It may call the rollout back. */
export interface RolloutListener {
  /** Output tokens from `offset` on are new. */
  tokens(request: Request, offset: number): void;
  /** The response is complete or given up (`isCut`). Its `finish` is the reason; `joinedMs` and `finishedMs` are set. */
  finished(request: Request): void;
  /** A closed group has only finished requests; it is forgotten afterwards. */
  groupFinished(group: Group): void;
  /** The request's tokens are discarded: it could not continue from them, and restarts. */
  restarted(request: Request): void;
  stats(workerId: WorkerId, stats: WorkerStats): void;
  /**
   * The worker was removed; its requests continue elsewhere, or wait for a worker. It may have been removed before, or
   * may not serve yet (`watch`).
   */
  workerFailed(worker: Worker, message: string): void;
  /** The request has been ended because it makes workers die; `response.refusal` is the reason. Before `finished`. */
  quarantined(request: Request): void;
  /** A wait has reached its bound: what was given up, in words for an operator. Before requests end for it. */
  waitEnded?(message: string): void;
  /** The worker gets no drafts, as it did not draw what it reported where it had them; or gets them again. */
  draftsOff?(worker: Worker, reason: string): void;
  /** One of the calls above threw. `request`: the request of that call, which has been ended; null: none. */
  threw(error: unknown, request: Request | null): void;
  /** A bug: the rollout has stopped and must not be used. */
  broken(error: unknown): void;
}

type Threw = (error: unknown, request: Request | null) => void;

/** `listener` with everything that it throws passed to `threw` instead. */
export function contained(listener: RolloutListener, threw: Threw): RolloutListener {
  const guard = (act: () => void, request: Request | null = null): void =>
    contain(act, (error) => threw(error, request));
  return {
    // Called for every batch of tokens, so it makes no closure.
    tokens: (request, offset) => {
      try {
        listener.tokens(request, offset);
      } catch (error) {
        threw(error, request);
      }
    },
    finished: (request) => guard(() => listener.finished(request), request),
    groupFinished: (group) => guard(() => listener.groupFinished(group)),
    restarted: (request) => guard(() => listener.restarted(request), request),
    stats: (workerId, stats) => guard(() => listener.stats(workerId, stats)),
    workerFailed: (worker, message) => guard(() => listener.workerFailed(worker, message)),
    quarantined: (request) => guard(() => listener.quarantined(request)),
    waitEnded: (message) => guard(() => listener.waitEnded?.(message)),
    draftsOff: (worker, reason) => guard(() => listener.draftsOff?.(worker, reason)),
    // No listener is left for what this throws.
    threw: (error, request) =>
      contain(
        () => listener.threw(error, request),
        () => {},
      ),
    broken: (error) => listener.broken(error),
  };
}
