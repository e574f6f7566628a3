// Who hears what happens in a rollout, and the guard around it: what a listener throws is a failure of the client
// behind it. It is reported, the request that it was about is ended, and everybody else goes on.

import type { WorkerId } from "../base/ids.ts";
import type { Group, Request } from "../request/buffer.ts";
import type { Worker, WorkerStats } from "./worker.ts";

/** Hears of everything, in order, inside the turn in which it happens. It may call the rollout back. */
export interface RolloutListener {
  /** Output tokens from `offset` on are new. */
  tokens(request: Request, offset: number): void;
  /** Its `response.finish` says why. */
  finished(request: Request): void;
  /** A closed group has only finished requests; it is forgotten afterwards. */
  groupFinished(group: Group): void;
  /** Its tokens are taken back: it could not go on from them, and begins anew. */
  restarted(request: Request): void;
  stats(workerId: WorkerId, stats: WorkerStats): void;
  /**
   * The worker is gone; what it ran goes on elsewhere, or waits for a worker. It may have been removed before, or
   * may not serve yet (`watch`).
   */
  workerFailed(worker: Worker, message: string): void;
  /** The request has been ended because workers died of it; its `response.refusal` says so. Before `finished`. */
  quarantined(request: Request): void;
  /** One of the calls above threw. `request`: the one that it was about, which has been ended; null: none. */
  threw(error: unknown, request: Request | null): void;
  /** A bug: the rollout has stopped and must not be used. */
  broken(error: unknown): void;
}

type Threw = (error: unknown, request: Request | null) => void;

/** `listener` with everything that it throws passed to `threw` instead. */
export function contained(listener: RolloutListener, threw: Threw): RolloutListener {
  const guard = (act: () => void, request: Request | null = null): void => {
    try {
      act();
    } catch (error) {
      threw(error, request);
    }
  };
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
    threw: (error, request) => {
      try {
        listener.threw(error, request);
      } catch {
        // There is nobody left to hear of it.
      }
    },
    broken: (error) => listener.broken(error),
  };
}
