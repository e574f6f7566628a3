// Context-aware order (paper, Algorithm 2): probes first, the shortest of them first, so that every
// group's length is known early; then the group with the longest estimate first, so that the longest
// responses are not the last to start. Every STARVATION_PERIOD-th pick goes to the group that has
// been served least, so that no group waits for the end of the iteration.

import { assert, present } from "../base/assert.ts";
import type { ContextManager } from "../context/context.ts";
import type { Group, Request } from "../request/buffer.ts";
import type { Heap } from "../wasm/heap.ts";
import type { SchedulePolicy } from "./policy.ts";

/** The paper says "occasionally" (section 3.3) and gives no number: about 6 % of the picks here. */
export const STARVATION_PERIOD = 16;

export interface ProbeFirstHeaps {
  /** Probes by tokens generated. */
  readonly probes: Heap;
  /** Groups with waiting requests by estimated length, longest first (keys are negative). */
  readonly lengths: Heap;
  /** The same groups by times served. */
  readonly served: Heap;
}

export class ProbeFirstPolicy implements SchedulePolicy {
  readonly #groups: readonly Group[];
  readonly #requests: readonly Request[];
  readonly #context: ContextManager;
  readonly #heaps: ProbeFirstHeaps;
  /** Waiting requests of each group that are not in the probe heap. */
  readonly #waiting: Set<Request>[];
  readonly #servedCount: Int32Array;
  #picks = 0;

  constructor(options: {
    groups: readonly Group[];
    requests: readonly Request[];
    context: ContextManager;
    heaps: ProbeFirstHeaps;
  }) {
    this.#groups = options.groups;
    this.#requests = options.requests;
    this.#context = options.context;
    this.#heaps = options.heaps;
    this.#waiting = options.groups.map(() => new Set());
    this.#servedCount = new Int32Array(options.groups.length);
  }

  add(request: Request): void {
    if (this.#context.isProbe(request)) {
      this.#heaps.probes.push(request.spec.requestId, request.response.length);
    } else {
      this.#addToRest(request);
    }
  }

  peek(): Request | null {
    const probe = this.#heaps.probes.peek();
    if (probe !== null)
      return present(this.#requests[probe], `request ${probe} is not in the buffer`);
    const { lengths, served } = this.#heaps;
    const isStarvationTurn = this.#picks % STARVATION_PERIOD === STARVATION_PERIOD - 1;
    const index = (isStarvationTurn ? served : lengths).peek();
    if (index === null) return null;
    return mostGenerated(this.#members(index));
  }

  take(request: Request): void {
    const { index } = request.group;
    this.#servedCount[index] = (this.#servedCount[index] ?? 0) + 1;
    if (this.#heaps.probes.remove(request.spec.requestId)) return;
    this.#picks += 1;
    const members = this.#members(index);
    assert(members.delete(request), "only a waiting request is taken");
    if (members.size === 0) {
      this.#heaps.lengths.remove(index);
      this.#heaps.served.remove(index);
    } else {
      this.#heaps.served.update(index, this.#servedCount[index] ?? 0);
    }
  }

  refresh(group: Group): void {
    const probe = present(group.requests[0], "a group has at least one request");
    // A sibling finished before the probe: the group is known, so its probe is one of the rest.
    if (!this.#context.isProbe(probe) && this.#heaps.probes.remove(probe.spec.requestId)) {
      this.#addToRest(probe);
    }
    if (this.#heaps.lengths.has(group.index)) {
      this.#heaps.lengths.update(group.index, -this.#context.estimate(group));
    }
  }

  isUrgent(request: Request): boolean {
    return this.#context.isProbe(request);
  }

  #addToRest(request: Request): void {
    const { index } = request.group;
    const members = this.#members(index);
    members.add(request);
    if (this.#heaps.lengths.has(index)) return;
    this.#heaps.lengths.push(index, -this.#context.estimate(request.group));
    this.#heaps.served.push(index, this.#servedCount[index] ?? 0);
  }

  #members(index: number): Set<Request> {
    assert(index < this.#groups.length, `group ${index} is not in the buffer`);
    return present(this.#waiting[index], `group ${index} is not in the buffer`);
  }
}

/**
 * The member that has come furthest; ties on the sample index. Lengths within a group differ with a heavy
 * tail, so the one that is longest already is the one likely to end last: it must not wait for siblings
 * that have yet to begin. (Replaying recorded lengths, least-first made the tail a tenth longer.)
 */
function mostGenerated(members: ReadonlySet<Request>): Request {
  let best: Request | null = null;
  for (const request of members) {
    if (best === null || comesBefore(request, best)) best = request;
  }
  return present(best, "a group in the heaps has a waiting request");
}

function comesBefore(a: Request, b: Request): boolean {
  const difference = a.response.length - b.response.length;
  return difference !== 0 ? difference > 0 : a.spec.sampleIndex < b.spec.sampleIndex;
}
