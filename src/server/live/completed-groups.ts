// Responses of complete groups, for the page: the rollout forgets a group when its last response ends. The bytes have a
// bound; the oldest groups are dropped first, so what an iteration ended with is kept longest.

import type { Group, RolloutRequest } from "../../core/request/buffer.ts";
import { type Kept, promptBytes, responseBytes } from "../kept.ts";

interface Entry {
  readonly group: Group;
  /** Number of the iteration in which its last response ended. */
  readonly iteration: number;
  readonly bytes: number;
}

export class CompletedGroups {
  readonly #bytesMax: number;
  readonly #entries = new Set<Entry>();
  readonly #requests = new Map<number, RolloutRequest>();
  #bytes = 0;

  /** `bytesMax` 0: nothing is kept. */
  constructor(bytesMax: number) {
    this.#bytesMax = bytesMax;
  }

  get kept(): Kept {
    return { bytes: this.#bytes, bytesMax: this.#bytesMax, count: this.#requests.size };
  }

  add(group: Group, iteration: number): void {
    const bytes = bytesOf(group);
    if (bytes > this.#bytesMax) return;
    const entry = { group, iteration, bytes };
    this.#entries.add(entry);
    this.#bytes += bytes;
    for (const request of group.requests) this.#requests.set(request.spec.requestId, request);
    for (const oldest of this.#entries) {
      if (this.#bytes <= this.#bytesMax) break;
      this.#drop(oldest);
    }
  }

  /** A response of a kept group by its number; null: its group is not complete or was dropped, or there is none. */
  request(id: number): RolloutRequest | null {
    return this.#requests.get(id) ?? null;
  }

  /** Groups of an iteration, as `columnsOf`. */
  ofIteration(iteration: number) {
    const entries = [...this.#entries].filter((entry) => entry.iteration === iteration);
    return entries.map(({ group }) => columnsOf(group));
  }

  #drop(entry: Entry): void {
    this.#entries.delete(entry);
    this.#bytes -= entry.bytes;
    for (const { spec } of entry.group.requests) this.#requests.delete(spec.requestId);
  }
}

/** Responses of a group in columns, one value for each. */
export function columnsOf({ groupId, requests }: Group) {
  return {
    group: groupId,
    requests: requests.map(({ spec }) => spec.requestId),
    lengths: requests.map(({ response }) => response.length),
    finish_reasons: requests.map(({ response }) => response.finish),
  };
}

/** Memory of a group. Turns of a session have prompts of their own. */
function bytesOf({ prompt, requests }: Group): number {
  let bytes = promptBytes(prompt);
  for (const request of requests) {
    bytes += responseBytes(request);
    if (request.spec.prompt !== prompt) bytes += promptBytes(request.spec.prompt);
  }
  return bytes;
}
