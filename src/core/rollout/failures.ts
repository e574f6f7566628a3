// How often a request may be tried: one that workers die of must not take one worker after the other. Workers are also
// killed from outside, whatever they run: that must cost no request. It counts and judges; the loop ends and schedules.
//
// - A request that was running on a worker that died is a suspect (`Attempts`). The scheduler runs one suspect at a
//   time on a worker, and begins no new request beside it, so that the next death has one explanation.
// - A request on probation when a second worker dies has spent its budget: it is rejected, as are equal ones.
// - A death of which all suspects were cleared came from outside. While such deaths occur, more are needed for a verdict.
// - Rejected requests are remembered for a while by their content, in quarantine: clients answer a 502 by sending the same
//   request again, and each time it would kill two workers.

import type { Clock } from "../base/clock.ts";
import { Attempts, type Death } from "../request/attempts.ts";
import { isSuspect, type RolloutRequest } from "../request/buffer.ts";
import { promptKey } from "../request/prompt-key.ts";

/** Two workers that die of the same request, with nothing else to blame: one could be chance. */
const ATTEMPTS_MAX = 2;
/** Time for which a death from outside counts, and the maximum number that count. */
const OUTSIDE_MS = 10_000;
const OUTSIDE_MAX = 6;
/** Even with progress in between: no request is present at this many deaths by chance. */
const DEATHS_MAX = 64;
const REPORT_CHARACTERS = 300;

/** Maximum of dead workers' last messages in the message about a request. */
const REPORTS_MAX = 4;

/** Longer than clients' pauses between retries; short, for the judgement may have been wrong. */
const QUARANTINE_MS = 60_000;
const QUARANTINE_MAX = 256;

export interface Verdict {
  readonly request: RolloutRequest;
  readonly message: string;
}

export class Failures {
  readonly #clock: Clock;
  /** When deaths from outside were recognised, the oldest first. */
  #outsideMs: number[] = [];
  /** Messages about rejected requests by content, the oldest first. */
  readonly #quarantine = new Map<string, { readonly untilMs: number; readonly message: string }>();
  /** Requests whose worker has just died: what waits of them is not scheduled yet. */
  readonly #delayed = new Set<RolloutRequest>();
  /** Requests that have joined and are to be rejected, and why. */
  readonly #rejected = new Map<RolloutRequest, string>();

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /** A request like those that workers died of is refused, later: its caller must know it first. */
  joined(request: RolloutRequest): void {
    if (this.#quarantine.size === 0) return;
    const nowMs = this.#clock.nowMs();
    for (const [key, { untilMs }] of this.#quarantine) {
      if (untilMs > nowMs) break;
      this.#quarantine.delete(key);
    }
    const key = this.#quarantine.size === 0 ? null : contentOf(request);
    const known = key === null ? undefined : this.#quarantine.get(key);
    if (known !== undefined) this.#rejected.set(request, known.message);
  }

  /** Requests that have joined since the last call and are refused. */
  refused(): readonly Verdict[] {
    if (this.#rejected.size === 0) return NONE;
    const refused = Array.from(this.#rejected, ([request, message]) => ({ request, message }));
    this.#rejected.clear();
    return refused;
  }

  /** true: the request's worker has just died, and it is not tried again yet. */
  holds(request: RolloutRequest): boolean {
    return this.#delayed.has(request);
  }

  progressed(request: RolloutRequest): void {
    const { attempts, response } = request;
    if (attempts !== null && response.length > attempts.watermark) {
      this.#clear(attempts.progressed(response.length));
    }
  }

  /** The request has ended: it is neither tried again nor rejected later. `isKnown`: regularly, so workers did not die of it. */
  ended(request: RolloutRequest, isKnown: boolean): void {
    this.#delayed.delete(request);
    this.#rejected.delete(request);
    const deaths = request.attempts?.cleared() ?? NONE;
    if (!isKnown) for (const death of deaths) death.isUnknown = true;
    this.#clear(deaths);
  }

  /** Other weights may run what these did not. */
  advanced(): void {
    this.#quarantine.clear();
  }

  /** A worker died while it ran `running`. Returns the requests that are not to be tried again. */
  died(report: string, running: readonly RolloutRequest[]): RolloutRequest[] {
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

  hold(requests: readonly RolloutRequest[]): void {
    for (const request of requests) this.#delayed.add(request);
  }

  release(requests: readonly RolloutRequest[]): RolloutRequest[] {
    return requests.filter((request) => this.#delayed.delete(request));
  }

  /** Workers died of the request: it is rejected, and with it those that ask for the same, wait, and are suspects too. */
  verdicts(request: RolloutRequest): Verdict[] {
    const { spec, group, attempts } = request;
    if (request.status === "finished" || attempts === null) return [];
    const { requestId, sampleIndex, sampling } = spec;
    const name = `request ${requestId} (group ${group.groupId}, response ${sampleIndex})`;
    const reports = attempts.reports.slice(-REPORTS_MAX).join("; ");
    const message = `${name}: ${attempts.total} workers ended while they ran it, it is not tried again: ${reports}`;
    this.#remember(request, message);
    const alike = group.requests.filter(
      (sibling) =>
        sibling !== request &&
        sibling.spec.sampling === sampling &&
        isSuspect(sibling) &&
        sibling.status === "waiting",
    );
    return [request, ...alike].map((one) => ({ request: one, message }));
  }

  #remember(request: RolloutRequest, message: string): void {
    const key = contentOf(request);
    if (key === null) return;
    this.#quarantine.delete(key);
    this.#quarantine.set(key, { untilMs: this.#clock.nowMs() + QUARANTINE_MS, message });
    for (const oldest of this.#quarantine.keys()) {
      if (this.#quarantine.size <= QUARANTINE_MAX) return;
      this.#quarantine.delete(oldest);
    }
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

const NONE: readonly never[] = [];

/** null: the request cannot be distinguished from others. */
function contentOf({ spec: { prompt, sampling } }: RolloutRequest): string | null {
  try {
    return `${promptKey(prompt)} ${JSON.stringify(sampling)}`;
  } catch {
    // Fields for the engine that are nested too deep.
    return null;
  }
}
