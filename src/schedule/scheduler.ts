// Decides which request runs where, for how many tokens. It owns no sockets, no timers and no KV:
// `schedule` takes what is known now and returns commands. The rollout executes them against
// workers, a simulator against models.

import { assert, present } from "../base/assert.ts";
import type { WorkerId } from "../base/ids.ts";
import type { Group, Request } from "../request/buffer.ts";
import { place, type Slot, tokensNeeded } from "./placement.ts";
import type { SchedulePolicy } from "./policy.ts";

export type ScheduleCommand =
  /** Run the next `chunkTokens` tokens of the request on the worker; its KV follows it. */
  | { kind: "dispatch"; request: Request; workerId: WorkerId; chunkTokens: number }
  /** The request waits and others want its room: take its KV from where it is parked into the pool. */
  | { kind: "offload"; request: Request; workerId: WorkerId };

/**
 * divided: chunks of `chunkTokens`, placed one by one under admission.
 * pinned: a whole group goes to one worker, round robin, undivided; the engine queues and preempts (as veRL).
 */
export type DispatchMode = { kind: "divided"; chunkTokens: number } | { kind: "pinned" };

export class Scheduler {
  readonly #policy: SchedulePolicy;
  readonly #mode: DispatchMode;
  /** Waiting requests whose KV still lies on a worker. */
  readonly #parked = new Set<Request>();

  constructor(policy: SchedulePolicy, mode: DispatchMode) {
    if (mode.kind === "divided") assert(mode.chunkTokens >= 1, "a chunk has at least one token");
    this.#policy = policy;
    this.#mode = mode;
  }

  /** The request waits: new, at the end of a chunk, or after its worker failed. */
  enqueue(request: Request): void {
    assert(request.status === "waiting", "only a waiting request is scheduled");
    this.#policy.add(request);
    if (request.residentOn !== null) this.#parked.add(request);
  }

  /** The length context of the group has changed. */
  refresh(group: Group): void {
    this.#policy.refresh(group);
  }

  /** The request's parked KV is gone from its worker (exported, evicted, or the worker failed). */
  unparked(request: Request): void {
    this.#parked.delete(request);
  }

  /** The request was given up. */
  remove(request: Request): void {
    this.#policy.remove(request);
    this.#parked.delete(request);
  }

  isUrgent(request: Request): boolean {
    return this.#policy.isUrgent(request);
  }

  /** Commands for now. Consumes `slots`. The caller must carry out every command. */
  schedule(slots: Slot[]): ScheduleCommand[] {
    const commands: ScheduleCommand[] = [];
    if (slots.length === 0) return commands;
    for (;;) {
      const request = this.#policy.peek();
      if (request === null) return commands;
      const left = request.spec.sampling.tokensMax - request.response.length;
      assert(left >= 1, "a waiting request has tokens left");
      const chunkTokens =
        this.#mode.kind === "pinned" || !request.spec.divisible
          ? left
          : Math.min(left, this.#mode.chunkTokens);
      const slot =
        this.#mode.kind === "pinned"
          ? present(slots[request.group.index % slots.length], "there is a slot for every group")
          : place(request, slots, chunkTokens);
      if (slot === null) break;
      this.#policy.take(request);
      this.#parked.delete(request);
      slot.kvTokensFree -= tokensNeeded(request, slot, chunkTokens);
      slot.inFlight += 1;
      commands.push({ kind: "dispatch", request, workerId: slot.workerId, chunkTokens });
    }
    // Somebody waits for room, so KV of requests that do not run makes way.
    for (const request of this.#parked) {
      const workerId = present(request.residentOn, "a parked request is resident");
      commands.push({ kind: "offload", request, workerId });
    }
    this.#parked.clear();
    return commands;
  }
}
