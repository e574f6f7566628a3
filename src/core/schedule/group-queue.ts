// Waiting requests by group: the groups in two orders, by a key and by how often each was served, and within a group
// the request that has come furthest first. Who asks decides which of the two orders counts.

import { present } from "../base/assert.ts";
import type { Group, Request, Requests } from "../request/buffer.ts";
import type { Heap } from "../wasm/heap.ts";

export interface GroupQueueHeaps {
  /** Groups with waiting requests by their key, lowest first. */
  readonly keyed: Heap;
  /** The same groups by times served. */
  readonly served: Heap;
}

interface Waiting {
  readonly group: Group;
  readonly members: Set<Request>;
  /** Times a request of the group was picked. */
  served: number;
  /** Key in the heap, where the group has members. */
  key: number;
}

export class GroupQueue {
  readonly #buffer: Requests;
  readonly #heaps: GroupQueueHeaps;
  readonly #keyOf: (group: Group) => number;
  /** Waiting requests by group index. */
  readonly #waiting: (Waiting | undefined)[] = [];

  constructor(options: {
    buffer: Requests;
    heaps: GroupQueueHeaps;
    keyOf: (group: Group) => number;
  }) {
    this.#buffer = options.buffer;
    this.#heaps = options.heaps;
    this.#keyOf = options.keyOf;
  }

  add(request: Request): void {
    const { group } = request;
    const waiting = this.#of(group);
    waiting.members.add(request);
    if (waiting.members.size > 1) return;
    waiting.key = this.#keyOf(group);
    this.#heaps.keyed.push(group.index, waiting.key);
    this.#heaps.served.push(group.index, waiting.served);
  }

  /** The furthest request of the first group in one of the orders; null: nothing waits. */
  peek(order: keyof GroupQueueHeaps): Request | null {
    const index = this.#heaps[order].peek();
    if (index === null) return null;
    return mostGenerated(this.#of(this.#buffer.groupAt(index)).members);
  }

  /** A request of the group is picked, from here or elsewhere. Call before `remove`. */
  serve(group: Group): void {
    this.#of(group).served += 1;
  }

  /** false: it was not there. */
  remove(request: Request): boolean {
    const { index } = request.group;
    const { members, served } = this.#of(request.group);
    if (!members.delete(request)) return false;
    const { keyed, served: byServed } = this.#heaps;
    if (members.size === 0) {
      keyed.remove(index);
      byServed.remove(index);
    } else {
      byServed.update(index, served);
    }
    return true;
  }

  /** The key of the group may have changed. Called for most batches of tokens: the core is asked only if it has. */
  refresh(group: Group): void {
    const waiting = this.#waiting[group.index];
    if (waiting?.group !== group || waiting.members.size === 0) return;
    const key = this.#keyOf(group);
    if (key === waiting.key) return;
    waiting.key = key;
    this.#heaps.keyed.update(group.index, key);
  }

  forget(group: Group): void {
    if (this.#waiting[group.index]?.group === group) this.#waiting[group.index] = undefined;
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
