// How often a request may be tried: a request that workers die of must not take one worker after the other. It counts
// and judges; the rollout acts. Workers are also killed from outside, whatever they run: that must cost no request.
//
// - A request that was running on a worker that died is a suspect (`Attempts`). The scheduler runs one suspect at a
//   time on a worker, and begins no new request beside it, so that the next death has one explanation.
// - A request on probation when a second worker dies has spent its budget.
// - A death of which all suspects were cleared came from outside. While such deaths occur, more are needed for a verdict.

import type { Clock } from "../base/clock.ts";
import { Attempts, type Death } from "../request/attempts.ts";
import type { Request } from "../request/buffer.ts";

/** Two workers that die of the same request, with nothing else to blame: one could be chance. */
const ATTEMPTS_MAX = 2;
/** Time for which a death from outside counts, and the maximum number that count. */
const OUTSIDE_MS = 10_000;
const OUTSIDE_MAX = 6;
/** Even with progress in between: no request is present at this many deaths by chance. */
const DEATHS_MAX = 64;
/** Characters kept of a dying worker's last message. */
const REPORT_CHARACTERS = 300;

export class AttemptBudget {
  readonly #clock: Clock;
  /** When deaths from outside were recognised, the oldest first. */
  #outsideMs: number[] = [];

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /** A worker died while it ran `running`. Returns the requests that are not to be tried again. */
  died(report: string, running: readonly Request[]): Request[] {
    const death: Death = { suspects: running.length, isUnknown: false };
    const max = ATTEMPTS_MAX + this.#outside();
    const spent = running.filter((request) => {
      request.attempts ??= new Attempts();
      const { attempts, spec } = request;
      const wasOnProbation = attempts.isOnProbation;
      const tokens = request.response.length;
      const about = {
        tokens,
        divisible: spec.divisible,
        report: report.slice(0, REPORT_CHARACTERS),
      };
      attempts.died(death, about);
      return attempts.total >= DEATHS_MAX || (wasOnProbation && attempts.deaths >= max);
    });
    if (running.length === 0) this.#fromOutside();
    return spent;
  }

  /** The request has more output tokens than its watermark. */
  progressed(request: Request): void {
    this.#clear(request.attempts?.progressed(request.response.length) ?? []);
  }

  /** The request has ended. `isKnown`: regularly, so workers did not die of it. */
  finished(request: Request, isKnown: boolean): void {
    const deaths = request.attempts?.cleared() ?? [];
    if (!isKnown) for (const death of deaths) death.isUnknown = true;
    this.#clear(deaths);
  }

  #clear(deaths: readonly Death[]): void {
    for (const death of deaths) {
      death.suspects -= 1;
      if (death.suspects === 0 && !death.isUnknown) this.#fromOutside();
    }
  }

  #fromOutside(): void {
    this.#outsideMs.push(this.#clock.nowMs());
    if (this.#outsideMs.length > OUTSIDE_MAX) this.#outsideMs.shift();
  }

  #outside(): number {
    const sinceMs = this.#clock.nowMs() - OUTSIDE_MS;
    this.#outsideMs = this.#outsideMs.filter((atMs) => atMs >= sinceMs);
    return this.#outsideMs.length;
  }
}
