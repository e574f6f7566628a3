// The context manager: what has been learned so far about each group, and which of its requests is the
// probe. The scheduler reads it; the rollout tells it what happened.

import { present } from "../base/assert.ts";
import type { Group, Request } from "../request/buffer.ts";
import { LengthEstimate } from "./length-estimate.ts";

interface GroupContext {
  readonly estimate: LengthEstimate;
  /** The request that runs first to learn the group's length; null: it was given up. */
  probe: Request | null;
}

export class ContextManager {
  readonly #contexts = new Map<Group, GroupContext>();

  /** A request of the group was added; the group's first one is its probe. */
  joined(request: Request): void {
    const { tokensMax } = request.spec.sampling;
    const context = this.#contexts.get(request.group);
    if (context === undefined) {
      this.#contexts.set(request.group, {
        estimate: new LengthEstimate(tokensMax),
        probe: request,
      });
    } else {
      context.estimate.bounded(tokensMax);
    }
  }

  /** The first response of a group is its probe, until it or a sibling has finished. */
  isProbe(request: Request): boolean {
    const { probe, estimate } = this.#of(request.group);
    return probe === request && !estimate.informed;
  }

  /** L_g in output tokens. */
  estimate(group: Group): number {
    return this.#of(group).estimate.tokens;
  }

  /** Call after tokens were appended to a response that goes on. */
  progressed(request: Request): void {
    this.#of(request.group).estimate.progressed(request.response.length);
  }

  finished(request: Request): void {
    this.#of(request.group).estimate.finished(request.response.length);
  }

  /** The request was given up: its length says nothing about the group. */
  aborted(request: Request): void {
    const context = this.#of(request.group);
    if (context.probe === request) context.probe = null;
  }

  /** The group is removed. */
  forget(group: Group): void {
    this.#contexts.delete(group);
  }

  #of(group: Group): GroupContext {
    return present(this.#contexts.get(group), `group ${group.groupId} is in the context`);
  }
}
