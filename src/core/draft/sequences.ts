// Maps requests to sequences of their draft group, mostly by the request's own number. Replicas keep the tokens of a
// sequence, so a response that restarts, perhaps with other tokens, gets another sequence; the old one stays as a
// sibling that does not grow.

import type { Group, RolloutRequest } from "../request/buffer.ts";

export class DraftSequences {
  /** Sequences of requests that are not at their own number. */
  readonly #indexes = new Map<RolloutRequest, number>();
  /** Sequences that are not of the response with that number; null: of a beginning that was taken back. */
  readonly #owners = new Map<Group, Map<number, RolloutRequest | null>>();

  indexOf(request: RolloutRequest): number {
    const known = this.#indexes.get(request);
    if (known !== undefined) return known;
    const { sampleIndex } = request.spec;
    const owners = this.#owners.get(request.group);
    // A response that restarted earlier may use it.
    if (owners === undefined || !owners.has(sampleIndex)) return sampleIndex;
    return this.#move(request, owners);
  }

  /** The request that uses sequence `index` of the group now; null: none. */
  ownerAt(group: Group, index: number): RolloutRequest | null {
    const owner = this.#owners.get(group)?.get(index);
    return owner === undefined ? (group.requests[index] ?? null) : owner;
  }

  /** The response restarts. */
  restarted(request: RolloutRequest): void {
    const index = this.indexOf(request);
    const owners = this.#owners.getOrInsertComputed(request.group, () => new Map());
    owners.set(index, null);
    this.#move(request, owners);
  }

  forget(request: RolloutRequest): void {
    this.#indexes.delete(request);
    this.#owners.delete(request.group);
  }

  clear(): void {
    this.#indexes.clear();
    this.#owners.clear();
  }

  /** Moves a request to the first unused sequence. */
  #move(request: RolloutRequest, owners: Map<number, RolloutRequest | null>): number {
    let index = request.group.requests.length;
    while (owners.has(index)) index += 1;
    owners.set(index, request);
    this.#indexes.set(request, index);
    return index;
  }
}
