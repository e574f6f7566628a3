// The context manager: the length estimate and the probe of each group. The scheduler reads it; the rollout updates it.

import { assert } from "../base/assert.ts";
import type { Group, Request } from "../request/buffer.ts";
import { LengthEstimate } from "./length-estimate.ts";
import { SessionOutlook } from "./session-outlook.ts";
import { Turnover } from "./turnover.ts";

interface GroupContext {
  readonly group: Group;
  /** The longest response to be expected by earlier weight epochs, in output tokens; null: not known. */
  readonly prior: number | null;
  readonly estimate: LengthEstimate;
  /** The request that runs first to learn the group's length; null: it was given up. */
  probe: Request | null;
}

/** The longest response to be expected by what earlier weight epochs made of the request's prompt; null: not known. */
export type LengthPrior = (request: Request) => number | null;

export class ContextManager {
  readonly turnover = new Turnover();
  readonly sessions = new SessionOutlook();
  readonly #prior: LengthPrior;
  /** Contexts by group index, which later groups may reuse. */
  readonly #contexts: (GroupContext | undefined)[] = [];

  constructor(prior: LengthPrior = () => null) {
    this.#prior = prior;
  }

  /** A request of the group was added; the group's first one is its probe. */
  joined(request: Request): void {
    this.turnover.joined(request);
    const { tokensMax } = request.spec.sampling;
    const { group } = request;
    const context = this.#contexts[group.index];
    if (context?.group === group) {
      context.estimate.bounded(tokensMax);
    } else {
      const prior = this.#prior(request);
      const estimate = new LengthEstimate(tokensMax, prior);
      this.#contexts[group.index] = { group, prior, estimate, probe: request };
    }
  }

  /** The first response of a group is its probe, until it or a sibling has finished; with a prior there is none. */
  isProbe(request: Request): boolean {
    const { probe, estimate } = this.#of(request.group);
    if (probe !== request) return false;
    return request.turn > 0 ? this.sessions.leads(request) : !estimate.informed;
  }

  /** The request is the next turn of a session. A session that begins with its group's probe is probed as a whole. */
  continued(next: Request, from: Request): void {
    this.sessions.came();
    const context = this.#of(next.group);
    if (context.probe === from) context.probe = next;
  }

  /** See GroupContext. */
  prior(group: Group): number | null {
    return this.#of(group).prior;
  }

  /** L_g in output tokens; until a response has finished, or with no history, the maximum of tokens (length-estimate.ts). */
  estimate(group: Group): number {
    return this.#of(group).estimate.tokens;
  }

  /** L_g as far as it is more than the bound: a response of the group, or an earlier epoch, has shown it; else null. */
  learned(group: Group): number | null {
    const { estimate } = this.#of(group);
    return estimate.informed ? estimate.tokens : null;
  }

  /** Call after tokens were appended to an unfinished response. true: the group's estimate has changed. */
  progressed(request: Request): boolean {
    return this.#of(request.group).estimate.progressed(request.response.length);
  }

  finished(request: Request): void {
    this.turnover.left();
    this.#of(request.group).estimate.finished(request.response.length);
    if (request.spec.keepsKv === true) this.sessions.ended(request);
  }

  /** The request was aborted: its length is no sample of the group's. */
  aborted(request: Request): void {
    this.turnover.left();
    const context = this.#of(request.group);
    if (context.probe === request) context.probe = null;
  }

  /** The group is removed. */
  forget(group: Group): void {
    this.sessions.forget(group);
    if (this.#contexts[group.index]?.group === group) this.#contexts[group.index] = undefined;
  }

  #of(group: Group): GroupContext {
    const context = this.#contexts[group.index];
    assert(context?.group === group, "the group is in the context");
    return context;
  }
}
