// The groups that were complete last, with their responses: the rollout forgets a group when its last response ends. The
// page shows them, and clients of a stream that broke get them. The bytes have a bound; the oldest groups are dropped first.

import type { Group, RolloutRequest } from "../core/request/buffer.ts";
import { type Kept, promptBytes, responseBytes } from "./kept.ts";
import type { Sidecar } from "./sidecar.ts";

export class CompletedGroups {
  readonly #bytesMax: number;
  /** The groups with their memory, the oldest first. */
  readonly #groups = new Map<Group, number>();
  readonly #requests = new Map<number, RolloutRequest>();
  #bytes = 0;

  /** `bytesMax` 0: nothing is kept. */
  constructor(sidecar: Pick<Sidecar, "observe">, bytesMax: number) {
    this.#bytesMax = bytesMax;
    sidecar.observe({ groupFinished: (group) => this.#add(group) });
  }

  get kept(): Kept {
    return { bytes: this.#bytes, bytesMax: this.#bytesMax, count: this.#requests.size };
  }

  get groups(): readonly Group[] {
    return [...this.#groups.keys()];
  }

  has(group: Group): boolean {
    return this.#groups.has(group);
  }

  /** A response of a kept group by its number; null: its group is not complete or was dropped, or there is none. */
  request(id: number): RolloutRequest | null {
    return this.#requests.get(id) ?? null;
  }

  #add(group: Group): void {
    // A session may have gone on in it.
    this.#drop(group);
    const bytes = bytesOf(group);
    if (bytes > this.#bytesMax) return;
    this.#groups.set(group, bytes);
    this.#bytes += bytes;
    for (const request of group.requests) this.#requests.set(request.spec.requestId, request);
    for (const oldest of this.#groups.keys()) {
      if (this.#bytes <= this.#bytesMax) return;
      this.#drop(oldest);
    }
  }

  #drop(group: Group): void {
    this.#bytes -= this.#groups.get(group) ?? 0;
    if (!this.#groups.delete(group)) return;
    for (const { spec } of group.requests) this.#requests.delete(spec.requestId);
  }
}

/** Memory of a group. Turns of a session have prompts of their own. */
function bytesOf({ requests }: Group): number {
  const prompts = new Set(requests.map(({ spec }) => spec.prompt));
  let bytes = 0;
  for (const prompt of prompts) bytes += promptBytes(prompt);
  for (const request of requests) bytes += responseBytes(request);
  return bytes;
}
