// Context-aware order (paper, Algorithm 2): probes first, the shortest of them first, so that every
// group's length is known early; then the group with the longest estimate first, so that the longest
// responses are not the last to start. Every STARVATION_PERIOD-th pick goes to the group that has
// been served least, so that no group waits for the end of the iteration.

import { assert, present } from "../base/assert.ts";
import type { ContextManager } from "../context/context.ts";
import type { Group, Request, RequestBuffer } from "../request/buffer.ts";
import type { Heap } from "../wasm/heap.ts";
import { PRIORITY_STRIDE, type SchedulePolicy } from "./policy.ts";

/** The paper writes "occasionally" (section 3.3) and gives no number: about 6 % of the picks here. */
export const STARVATION_PERIOD = 16;

export interface ProbeFirstHeaps {
  /** Probes by tokens generated. */
  readonly probes: Heap;
  /** Groups with waiting requests by estimated length, longest first (keys are negative). */
  readonly lengths: Heap;
  /** The same groups by times served. */
  readonly served: Heap;
}

interface Waiting {
  readonly group: Group;
  readonly members: Set<Request>;
  /** Times a request of the group was picked. */
  served: number;
  /** The group's probe until it is one of the rest. */
  probe: Request | null;
}

export class ProbeFirstPolicy implements SchedulePolicy {
  readonly #buffer: RequestBuffer;
  readonly #context: ContextManager;
  readonly #heaps: ProbeFirstHeaps;
  /** By group index: waiting requests that are not in the probe heap. */
  readonly #waiting: (Waiting | undefined)[] = [];
  #picks = 0;

  constructor(options: {
    buffer: RequestBuffer;
    context: ContextManager;
    heaps: ProbeFirstHeaps;
  }) {
    this.#buffer = options.buffer;
    this.#context = options.context;
    this.#heaps = options.heaps;
  }

  add(request: Request): void {
    if (this.#context.isProbe(request)) {
      this.#of(request.group).probe = request;
      this.#heaps.probes.push(request.index, probeKey(request));
    } else {
      this.#addToRest(request);
    }
  }

  peek(): Request | null {
    const probe = this.#heaps.probes.peek();
    if (probe !== null) return this.#buffer.requestAt(probe);
    const { lengths, served } = this.#heaps;
    const isStarvationTurn = this.#picks % STARVATION_PERIOD === STARVATION_PERIOD - 1;
    const index = (isStarvationTurn ? served : lengths).peek();
    if (index === null) return null;
    return mostGenerated(this.#of(this.#buffer.groupAt(index)).members);
  }

  take(request: Request): void {
    this.#of(request.group).served += 1;
    if (this.#heaps.probes.remove(request.index)) return;
    this.#picks += 1;
    assert(this.#takeFromRest(request), "only a waiting request is taken");
  }

  remove(request: Request): void {
    if (!this.#heaps.probes.remove(request.index)) this.#takeFromRest(request);
  }

  refresh(group: Group): void {
    // A sibling finished before the probe: the group is known, so its probe is one of the rest.
    const { probe } = this.#of(group);
    if (probe !== null && !this.#context.isProbe(probe)) {
      this.#of(group).probe = null;
      if (this.#heaps.probes.remove(probe.index)) this.#addToRest(probe);
    }
    if (this.#heaps.lengths.has(group.index)) {
      this.#heaps.lengths.update(group.index, this.#lengthKey(group));
    }
  }

  forget(group: Group): void {
    if (this.#waiting[group.index]?.group === group) this.#waiting[group.index] = undefined;
  }

  compare(a: Request, b: Request): number {
    const isProbe = this.#context.isProbe(a);
    if (isProbe !== this.#context.isProbe(b)) return isProbe ? -1 : 1;
    if (isProbe) return probeKey(a) - probeKey(b) || a.index - b.index;
    const difference = this.#lengthKey(a.group) - this.#lengthKey(b.group);
    return difference || a.group.index - b.group.index || (comesBefore(a, b) ? -1 : 1);
  }

  isUrgent(request: Request): boolean {
    return this.#context.isProbe(request);
  }

  #addToRest(request: Request): void {
    const { group } = request;
    const { members, served } = this.#of(group);
    members.add(request);
    if (this.#heaps.lengths.has(group.index)) return;
    this.#heaps.lengths.push(group.index, this.#lengthKey(group));
    this.#heaps.served.push(group.index, served);
  }

  /** false: it was not there. */
  #takeFromRest(request: Request): boolean {
    const { index } = request.group;
    const { members, served } = this.#of(request.group);
    if (!members.delete(request)) return false;
    if (members.size === 0) {
      this.#heaps.lengths.remove(index);
      this.#heaps.served.remove(index);
    } else {
      this.#heaps.served.update(index, served);
    }
    return true;
  }

  /** A group has the priority that its first request came with. */
  #lengthKey(group: Group): number {
    const priority = group.requests[0]?.priority ?? 0;
    return priority * PRIORITY_STRIDE - this.#context.estimate(group);
  }

  /** An index that was used before belongs to a new group now, and starts at zero. */
  #of(group: Group): Waiting {
    const known = this.#waiting[group.index];
    if (known !== undefined && known.group === group) return known;
    const waiting: Waiting = { group, members: new Set(), served: 0, probe: null };
    this.#waiting[group.index] = waiting;
    return waiting;
  }
}

function probeKey({ priority, response }: Request): number {
  return priority * PRIORITY_STRIDE + response.length;
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
