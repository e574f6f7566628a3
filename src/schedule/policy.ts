// In which order waiting requests are served. A policy orders and nothing else: where a request runs,
// and whether there is room, is placement's business.

import type { Group, Request } from "../request/buffer.ts";

export const POLICY_NAMES = ["group", "divided", "seer"] as const;
export type PolicyName = (typeof POLICY_NAMES)[number];

export interface SchedulePolicy {
  /** The request becomes a candidate. It must not be one already. */
  add(request: Request): void;
  /** The next request to serve, or null. Does not modify; the same answer until something changes. */
  peek(): Request | null;
  /** Takes the request that `peek` returned out of the candidates. */
  take(request: Request): void;
  /** What the context knows about the group has changed. */
  refresh(group: Group): void;
  /** true: `request` runs in the high class of the draft budget. */
  isUrgent(request: Request): boolean;
}

/** A min-heap of small integer ids by key, ties on the lower id. Implemented in core.wasm. */
export interface IndexedHeap {
  readonly size: number;
  /** The id with the lowest key, or -1. */
  peek(): number;
  /** Adds an id that is not in the heap. */
  push(id: number, key: number): void;
  /** Changes the key of an id that is in the heap. */
  update(id: number, key: number): void;
  /** Takes an id out; false if it was not in the heap. */
  remove(id: number): boolean;
  has(id: number): boolean;
}
