// Handles requests whose worker died: they wait a little before they are tried again, and one that killed several
// workers is rejected, as are equal ones. `AttemptBudget` judges; the rollout ends and schedules.

import { isSuspect, type Request } from "../request/buffer.ts";
import { AttemptBudget } from "./attempt-budget.ts";
import type { RolloutParts } from "./parts.ts";
import { Quarantine } from "./quarantine.ts";

/**
 * Delay before requests of a dead worker run again: if something outside kills all workers, as at a shutdown, the next
 * worker has died meanwhile without running them.
 */
const RETRY_DELAY_MS = 500;
/** Maximum of dead workers' last messages in the message about a request. */
const REPORTS_MAX = 4;

/** See RolloutOptions. */
type Later = (act: () => void, ms: number) => () => void;

export class Failures {
  readonly #parts: RolloutParts;
  readonly #later: Later | undefined;
  /** Ends a request, of which workers died. */
  readonly #reject: (request: Request, message: string) => void;
  readonly #attempts: AttemptBudget;
  readonly #quarantine: Quarantine;
  /** Requests whose worker has just died: what waits of them is not scheduled yet. */
  readonly #delayed = new Set<Request>();
  /** Requests that are to be rejected in the next turn, and why. */
  readonly #rejected = new Map<Request, string>();

  constructor(
    parts: RolloutParts,
    later: Later | undefined,
    reject: (request: Request, message: string) => void,
  ) {
    this.#parts = parts;
    this.#later = later;
    this.#reject = reject;
    this.#attempts = new AttemptBudget(parts.clock);
    this.#quarantine = new Quarantine(parts.clock);
  }

  /**
   * Checks a request that has joined: one like those that workers died of is refused. The caller can handle that only
   * when it knows the request.
   */
  joined(request: Request): void {
    const reason = this.#quarantine.reason(request);
    if (reason !== null) this.#rejected.set(request, reason);
  }

  rejectJoined(): void {
    if (this.#rejected.size === 0) return;
    for (const [request, message] of [...this.#rejected]) this.#reject(request, message);
  }

  /** true: the request's worker has just died, and it is not tried again yet. */
  holds(request: Request): boolean {
    return this.#delayed.has(request);
  }

  /** The request has more output tokens. */
  progressed(request: Request): void {
    const { attempts, response } = request;
    if (attempts !== null && response.length > attempts.watermark) {
      this.#attempts.progressed(request);
    }
  }

  /** The request has ended: it is neither tried again nor rejected later. */
  ended(request: Request, isKnown: boolean): void {
    this.#delayed.delete(request);
    this.#rejected.delete(request);
    if (request.attempts !== null) this.#attempts.finished(request, isKnown);
  }

  /** Other weights may run what these did not. */
  advanced(): void {
    this.#quarantine.clear();
  }

  /** A worker died while it ran `running`. `remove` takes the worker out, after which they wait. */
  died(report: string, running: readonly Request[], remove: () => void): void {
    const { turn, wait } = this.#parts;
    const spent = this.#attempts.died(report, running);
    if (this.#later !== undefined) for (const request of running) this.#delayed.add(request);
    remove();
    for (const request of spent) this.#giveUp(request);
    const retry = () => {
      for (const request of running) if (this.#delayed.delete(request)) wait(request);
    };
    this.#later?.(() => turn(retry), RETRY_DELAY_MS);
  }

  /** Workers died of the request: it is ended, and with it those that ask for the same and are suspects too. */
  #giveUp(request: Request): void {
    const { spec, group, attempts } = request;
    if (request.status === "finished" || attempts === null) return;
    const { requestId, sampleIndex, sampling } = spec;
    const name = `request ${requestId} (group ${group.groupId}, response ${sampleIndex})`;
    const reports = attempts.reports.slice(-REPORTS_MAX).join("; ");
    const message = `${name}: ${attempts.total} workers ended while they ran it, it is not tried again: ${reports}`;
    this.#quarantine.add(request, message);
    this.#reject(request, message);
    for (const sibling of group.requests) {
      const isAlike = sibling.spec.sampling === sampling && isSuspect(sibling);
      if (isAlike && sibling.status === "waiting") this.#reject(sibling, message);
    }
  }
}
