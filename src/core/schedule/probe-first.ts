// Context-aware order (paper, Algorithm 2): probes first, the shortest of them first, so that every
// group's length is known early; then the group with the longest estimate first, so that the longest
// responses are not the last to start. Every STARVATION_PERIOD-th pick goes to the group that has
// been served least, so that no group waits for the end of the iteration.

import { assert } from "../base/assert.ts";
import type { ContextManager } from "../context/context.ts";
import type { Group, Request, Requests } from "../request/buffer.ts";
import type { Heap } from "../wasm/heap.ts";
import { GroupQueue, type GroupQueueHeaps } from "./group-queue.ts";
import { PRIORITY_STRIDE, type SchedulePolicy } from "./policy.ts";

/** The paper writes "occasionally" (section 3.3) and gives no number: about 6 % of the picks here. */
export const STARVATION_PERIOD = 16;

export interface ProbeFirstHeaps extends GroupQueueHeaps {
  /** Probes by tokens generated. */
  readonly probes: Heap;
}

export class ProbeFirstPolicy implements SchedulePolicy {
  readonly #buffer: Requests;
  readonly #context: ContextManager;
  readonly #probes: Heap;
  /** Probe of each group, until a sibling finishes and the probe is ordered like other requests. */
  readonly #probeOf = new Map<Group, Request>();
  /** Waiting requests that are no probes. */
  readonly #queue: GroupQueue;
  #picks = 0;

  constructor(options: {
    buffer: Requests;
    context: ContextManager;
    heaps: ProbeFirstHeaps;
  }) {
    const { buffer, context, heaps } = options;
    this.#buffer = buffer;
    this.#context = context;
    this.#probes = heaps.probes;
    this.#queue = new GroupQueue({ buffer, heaps, keyOf: (group) => longestFirst(group, context) });
  }

  add(request: Request): void {
    if (this.#context.isProbe(request)) {
      this.#probeOf.set(request.group, request);
      this.#probes.push(request.index, probeKey(request));
    } else {
      this.#queue.add(request);
    }
  }

  peek(): Request | null {
    const probe = this.#probes.peek();
    if (probe !== null) return this.#buffer.requestAt(probe);
    const isStarvationTurn = this.#picks % STARVATION_PERIOD === STARVATION_PERIOD - 1;
    return this.#queue.peek(isStarvationTurn ? "served" : "keyed");
  }

  take(request: Request): void {
    this.#queue.serve(request.group);
    if (this.#probes.remove(request.index)) return;
    this.#picks += 1;
    assert(this.#queue.remove(request), "only a waiting request is taken");
  }

  remove(request: Request): void {
    if (!this.#probes.remove(request.index)) this.#queue.remove(request);
  }

  refresh(group: Group): void {
    // A sibling finished before the probe: the group is known, so its probe waits in the queue.
    const probe = this.#probeOf.get(group);
    if (probe !== undefined && !this.#context.isProbe(probe)) {
      this.#probeOf.delete(group);
      if (this.#probes.remove(probe.index)) this.#queue.add(probe);
    }
    this.#queue.refresh(group);
  }

  forget(group: Group): void {
    this.#probeOf.delete(group);
    this.#queue.forget(group);
  }

  isUrgent(request: Request): boolean {
    return this.#context.isProbe(request);
  }
}

/** A group has the priority that its first request came with. Groups of unknown length count as the longest possible. */
function longestFirst(group: Group, context: ContextManager): number {
  const priority = group.requests[0]?.priority ?? 0;
  const tokens = context.sessions.tokens(group) ?? context.estimate(group);
  return priority * PRIORITY_STRIDE - tokens;
}

function probeKey({ priority, response }: Request): number {
  return priority * PRIORITY_STRIDE + response.length;
}
