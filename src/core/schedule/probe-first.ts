// Context-aware order (paper, Algorithm 2): probes first, the shortest of them first, so that every
// group's length is known early; then the group with the longest estimate first, so that the longest
// responses are not the last to start. Every STARVATION_PERIOD-th pick goes to the group that has
// been served least, so that no group waits for the end of the iteration.

import { assert, present } from "../base/assert.ts";
import type { ContextManager } from "../context/context.ts";
import type { Group, Requests, RolloutRequest } from "../request/buffer.ts";
import { Heap } from "../wasm/heap.ts";
import type { CoreExports } from "../wasm/load.ts";
import { PRIORITY_STRIDE, type SchedulePolicy } from "./policy.ts";

/** The paper writes "occasionally" (section 3.3) and gives no number: about 6 % of the picks here. */
export const STARVATION_PERIOD = 16;

/** The waiting requests of a group that are no probes. */
interface Waiting {
  readonly group: Group;
  readonly members: Set<RolloutRequest>;
  /** Times a request of the group was picked. */
  served: number;
  /** Key in the heap, where the group has members. */
  key: number;
}

export class ProbeFirstPolicy implements SchedulePolicy {
  readonly #buffer: Requests;
  readonly #context: ContextManager;
  /** Probes by tokens generated. */
  readonly #probes: Heap;
  /** Groups with waiting requests by their key, lowest first; and the same groups by times served. */
  readonly #keyed: Heap;
  readonly #served: Heap;
  /** Probe of each group, until a sibling finishes and the probe is ordered like other requests. */
  readonly #probeOf = new Map<Group, RolloutRequest>();
  /** By group index. */
  readonly #waiting: (Waiting | undefined)[] = [];
  #picks = 0;

  /** `core`: holds the heaps. */
  constructor(parts: { buffer: Requests; context: ContextManager; core: CoreExports }) {
    this.#buffer = parts.buffer;
    this.#context = parts.context;
    this.#probes = new Heap(parts.core);
    this.#keyed = new Heap(parts.core);
    this.#served = new Heap(parts.core);
  }

  add(request: RolloutRequest): void {
    const { group } = request;
    if (this.#context.isProbe(request)) {
      this.#probeOf.set(group, request);
      this.#probes.push(request.index, probeKey(request));
      return;
    }
    const waiting = this.#of(group);
    waiting.members.add(request);
    if (waiting.members.size > 1) return;
    waiting.key = longestFirst(group, this.#context);
    this.#keyed.push(group.index, waiting.key);
    this.#served.push(group.index, waiting.served);
  }

  peek(): RolloutRequest | null {
    const probe = this.#probes.peek();
    if (probe !== null) return this.#buffer.requestAt(probe);
    const isStarvationTurn = this.#picks % STARVATION_PERIOD === STARVATION_PERIOD - 1;
    const index = (isStarvationTurn ? this.#served : this.#keyed).peek();
    return index === null ? null : mostGenerated(this.#of(this.#buffer.groupAt(index)).members);
  }

  take(request: RolloutRequest): void {
    this.#of(request.group).served += 1;
    if (this.#probes.remove(request.index)) return;
    this.#picks += 1;
    assert(this.#leave(request), "only a waiting request is taken");
  }

  remove(request: RolloutRequest): void {
    if (!this.#probes.remove(request.index)) this.#leave(request);
  }

  /** false: it did not wait, or is a probe. */
  #leave(request: RolloutRequest): boolean {
    const { index } = request.group;
    const { members, served } = this.#of(request.group);
    if (!members.delete(request)) return false;
    if (members.size === 0) {
      this.#keyed.remove(index);
      this.#served.remove(index);
    } else {
      this.#served.update(index, served);
    }
    return true;
  }

  /** Called for most batches of tokens: the core is asked only if the group's key has changed. */
  refresh(group: Group): void {
    // A sibling finished before the probe: the group is known, so its probe waits in the queue.
    const probe = this.#probeOf.get(group);
    if (probe !== undefined && !this.#context.isProbe(probe)) {
      this.#probeOf.delete(group);
      if (this.#probes.remove(probe.index)) this.add(probe);
    }
    const waiting = this.#waiting[group.index];
    if (waiting?.group !== group || waiting.members.size === 0) return;
    const key = longestFirst(group, this.#context);
    if (key === waiting.key) return;
    waiting.key = key;
    this.#keyed.update(group.index, key);
  }

  forget(group: Group): void {
    this.#probeOf.delete(group);
    if (this.#waiting[group.index]?.group === group) this.#waiting[group.index] = undefined;
  }

  isUrgent(request: RolloutRequest): boolean {
    return this.#context.isProbe(request);
  }

  /** An index that was used before belongs to a new group now, and starts at zero. */
  #of(group: Group): Waiting {
    const known = this.#waiting[group.index];
    if (known !== undefined && known.group === group) return known;
    const waiting: Waiting = { group, members: new Set(), served: 0, key: 0 };
    this.#waiting[group.index] = waiting;
    return waiting;
  }
}

/** A group has the priority that its first request came with. Groups of unknown length count as the longest possible. */
function longestFirst(group: Group, context: ContextManager): number {
  const priority = group.requests[0]?.priority ?? 0;
  const tokens = context.sessions.tokens(group) ?? context.estimate(group);
  return priority * PRIORITY_STRIDE - tokens;
}

function probeKey({ priority, response }: RolloutRequest): number {
  return priority * PRIORITY_STRIDE + response.length;
}

/**
 * The member that has come furthest; ties on the sample index. Lengths within a group differ with a heavy
 * tail, so the one that is longest already is the one likely to end last: it must not wait for siblings
 * that have yet to begin. (Replaying recorded lengths, least-first made the tail a tenth longer.)
 */
function mostGenerated(members: ReadonlySet<RolloutRequest>): RolloutRequest {
  let best: RolloutRequest | null = null;
  for (const request of members) {
    if (best === null || comesBefore(request, best)) best = request;
  }
  return present(best, "a group in the heaps has a waiting request");
}

function comesBefore(a: RolloutRequest, b: RolloutRequest): boolean {
  const difference = a.response.length - b.response.length;
  return difference !== 0 ? difference > 0 : a.spec.sampleIndex < b.spec.sampleIndex;
}
