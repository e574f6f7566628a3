// Judges requests whose worker died: they wait a little before they are tried again, and one that killed several workers
// is rejected, as are equal ones. `AttemptBudget` counts; the loop ends and schedules.

import type { Clock } from "../base/clock.ts";
import { isSuspect, type Request } from "../request/buffer.ts";
import { AttemptBudget } from "./attempt-budget.ts";
import { Quarantine } from "./quarantine.ts";

/**
 * Delay before requests of a dead worker run again: if something outside kills all workers, as at a shutdown, the next
 * worker has died meanwhile without running them.
 */
export const RETRY_DELAY_MS = 500;
/** Maximum of dead workers' last messages in the message about a request. */
const REPORTS_MAX = 4;

/** A request that is not tried again, and why. */
export interface Verdict {
  readonly request: Request;
  readonly message: string;
}

export class Failures {
  readonly #attempts: AttemptBudget;
  readonly #quarantine: Quarantine;
  /** Requests whose worker has just died: what waits of them is not scheduled yet. */
  readonly #delayed = new Set<Request>();
  /** Requests that have joined and are to be rejected, and why. */
  readonly #rejected = new Map<Request, string>();

  constructor(clock: Clock) {
    this.#attempts = new AttemptBudget(clock);
    this.#quarantine = new Quarantine(clock);
  }

  /**
   * Checks a request that has joined: one like those that workers died of is refused. The caller can handle that only
   * when it knows the request.
   */
  joined(request: Request): void {
    const reason = this.#quarantine.reason(request);
    if (reason !== null) this.#rejected.set(request, reason);
  }

  /** Requests that have joined since the last call and are refused. */
  refused(): readonly Verdict[] {
    if (this.#rejected.size === 0) return NONE;
    const refused = Array.from(this.#rejected, ([request, message]) => ({ request, message }));
    this.#rejected.clear();
    return refused;
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

  /** A worker died while it ran `running`. Returns those that are not to be tried again. */
  died(report: string, running: readonly Request[]): readonly Request[] {
    return this.#attempts.died(report, running);
  }

  /** The requests are not tried again until they are released. */
  hold(requests: readonly Request[]): void {
    for (const request of requests) this.#delayed.add(request);
  }

  /** The requests that are still held. */
  release(requests: readonly Request[]): Request[] {
    return requests.filter((request) => this.#delayed.delete(request));
  }

  /** Workers died of the request: it is rejected, and with it those that ask for the same, wait, and are suspects too. */
  verdicts(request: Request): Verdict[] {
    const { spec, group, attempts } = request;
    if (request.status === "finished" || attempts === null) return [];
    const { requestId, sampleIndex, sampling } = spec;
    const name = `request ${requestId} (group ${group.groupId}, response ${sampleIndex})`;
    const reports = attempts.reports.slice(-REPORTS_MAX).join("; ");
    const message = `${name}: ${attempts.total} workers ended while they ran it, it is not tried again: ${reports}`;
    this.#quarantine.add(request, message);
    const alike = group.requests.filter(
      (sibling) =>
        sibling !== request &&
        sibling.spec.sampling === sampling &&
        isSuspect(sibling) &&
        sibling.status === "waiting",
    );
    return [request, ...alike].map((one) => ({ request: one, message }));
  }
}

const NONE: readonly Verdict[] = [];
