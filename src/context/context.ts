// The context manager: what has been learned so far about each group of the iteration, and which of
// its requests is the probe. The scheduler reads it; the rollout tells it what happened.

import { present } from "../base/assert.ts";
import type { Group, Request } from "../request/buffer.ts";
import { LengthEstimate } from "./length-estimate.ts";

export class ContextManager {
  readonly #estimates: readonly LengthEstimate[];

  constructor(groups: readonly Group[]) {
    this.#estimates = groups.map((group) => new LengthEstimate(group.spec.sampling.tokensMax));
  }

  /** The first response of a group is its probe, until it or a sibling has finished. */
  isProbe(request: Request): boolean {
    return request.spec.sampleIndex === 0 && !this.#of(request.group).informed;
  }

  /** L_g in output tokens. */
  estimate(group: Group): number {
    return this.#of(group).tokens;
  }

  /** Call after tokens were appended to a response that goes on. */
  progressed(request: Request): void {
    this.#of(request.group).progressed(request.response.length);
  }

  finished(request: Request): void {
    this.#of(request.group).finished(request.response.length);
  }

  #of(group: Group): LengthEstimate {
    return present(this.#estimates[group.index], `group ${group.index} is not in the context`);
  }
}
