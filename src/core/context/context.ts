// The context manager: the length estimate and the probe of each group. The scheduler reads it; the rollout updates it.

import { assert } from "../base/assert.ts";
import type { Group, RolloutRequest } from "../request/buffer.ts";
import { LengthEstimate } from "./length-estimate.ts";
import { SessionOutlook } from "./session-outlook.ts";
import { Turnover } from "./turnover.ts";

interface GroupContext {
  readonly group: Group;
  /** The longest response expected from those of earlier weight epochs, in output tokens; null: not known. */
  readonly prior: number | null;
  readonly estimate: LengthEstimate;
  /** The request that runs first to learn the group's length; null: it was given up. */
  probe: RolloutRequest | null;
}

/** The longest response expected from those that earlier weight epochs gave to the same prompt; null: not known. */
export type LengthPrior = (request: RolloutRequest) => number | null;

export class ContextManager {
  readonly turnover = new Turnover();
  readonly sessions = new SessionOutlook();
  readonly #prior: LengthPrior;
  /** Contexts by group index, which a later group may reuse. */
  readonly #contexts: (GroupContext | undefined)[] = [];

  constructor(prior: LengthPrior = () => null) {
    this.#prior = prior;
  }

  /** A request of the group was added; the group's first one is its probe. */
  joined(request: RolloutRequest): void {
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

  /** Whether the request is its group's probe: the first one, until any request finishes. A prior makes a probe unnecessary. */
  isProbe(request: RolloutRequest): boolean {
    const { probe, estimate } = this.#of(request.group);
    if (probe !== request) return false;
    return request.turn > 0 ? this.sessions.leads(request) : !estimate.informed;
  }

  /** Records that `next` is the next turn of the session of `from`. If `from` was its group's probe, `next` becomes it. */
  continued(next: RolloutRequest, from: RolloutRequest): void {
    this.sessions.came();
    if (from.status === "finished") this.turnover.continued();
    const context = this.#of(next.group);
    if (context.probe === from) context.probe = next;
  }

  /** See GroupContext. */
  prior(group: Group): number | null {
    return this.#of(group).prior;
  }

  /** L_g in output tokens (length-estimate.ts). Without a finished response or a prior, it is the upper bound. */
  estimate(group: Group): number {
    return this.#of(group).estimate.tokens;
  }

  /** L_g if a finished response or a prior has shown it; null: it would be the upper bound only. */
  learned(group: Group): number | null {
    const { estimate } = this.#of(group);
    return estimate.informed ? estimate.tokens : null;
  }

  /** Call after tokens were appended to an unfinished response. true: the group's estimate has changed. */
  progressed(request: RolloutRequest): boolean {
    return this.#of(request.group).estimate.progressed(request.response.length);
  }

  finished(request: RolloutRequest): void {
    this.turnover.left();
    this.#of(request.group).estimate.finished(request.response.length);
    if (request.spec.keepsKv === true) this.sessions.ended(request);
  }

  /** Records that the request was aborted: its length says nothing about the group's. */
  aborted(request: RolloutRequest): void {
    this.turnover.left();
    const context = this.#of(request.group);
    if (context.probe === request) context.probe = null;
  }

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
