// StreamRL-Oracle, a baseline of the paper: whole requests, dispatched by their true lengths. The longest fifth goes
// to instances of its own; within each part, longest first to the instance with the least work.

import type { WorkerId } from "../../core/base/ids.ts";
import { contextTokens, type Request } from "../../core/request/buffer.ts";
import type { Slot } from "../../core/schedule/placement.ts";
import type { ScheduleCommand } from "../../core/schedule/scheduler.ts";
import type { SimScheduler } from "./simulation.ts";

/** StreamRL (2504.15930) calls the longest 20 % the long tail. */
const TAIL_SHARE = 0.2;

export class StreamRlOracle implements SimScheduler {
  readonly #lengthOf: (request: Request) => number;
  #waiting: Request[] = [];

  constructor(lengthOf: (request: Request) => number) {
    this.#lengthOf = lengthOf;
  }

  enqueue(request: Request): void {
    this.#waiting.push(request);
  }

  refresh(): void {}

  unparked(): void {}

  isUrgent(): boolean {
    return false;
  }

  schedule(slots: Slot[]): ScheduleCommand[] {
    const requests = this.#waiting.sort(
      (a, b) => this.#lengthOf(b) - this.#lengthOf(a) || a.index - b.index,
    );
    if (requests.length === 0) return [];
    this.#waiting = [];
    const tailCount = Math.ceil(requests.length * TAIL_SHARE);
    const tail = requests.slice(0, tailCount);
    const rest = requests.slice(tailCount);
    const share = this.#tokens(tail) / this.#tokens(requests);
    const tailSlots = Math.max(1, Math.min(slots.length - 1, Math.round(share * slots.length)));
    if (slots.length === 1) return this.#spread(requests, slots);
    return [
      ...this.#spread(tail, slots.slice(0, tailSlots)),
      ...this.#spread(rest, slots.slice(tailSlots)),
    ];
  }

  #tokens(requests: readonly Request[]): number {
    return requests.reduce((sum, request) => sum + this.#lengthOf(request), 0);
  }

  /** Longest first, each to the instance with the fewest tokens so far. */
  #spread(requests: readonly Request[], slots: readonly Slot[]): ScheduleCommand[] {
    const loads: { workerId: WorkerId; tokens: number }[] = slots.map(({ workerId }) => ({
      workerId,
      tokens: 0,
    }));
    const commands: ScheduleCommand[] = [];
    for (const request of requests) {
      let least = loads[0];
      for (const load of loads) if (least !== undefined && load.tokens < least.tokens) least = load;
      if (least === undefined) return commands;
      least.tokens += this.#lengthOf(request);
      const chunkTokens = request.spec.sampling.tokensMax - request.response.length;
      const { workerId } = least;
      const reservedTokens = contextTokens(request) + chunkTokens;
      commands.push({ kind: "dispatch", request, workerId, chunkTokens, reservedTokens });
    }
    return commands;
  }
}
