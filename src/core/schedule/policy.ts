// In which order waiting requests are served. A policy orders and nothing else: where a request runs,
// and whether there is room, is placement's business.

import type { Group, RolloutRequest } from "../request/buffer.ts";
import type { Slot } from "./placement.ts";

export interface SchedulePolicy {
  /** A turn begins, with these workers. Absent: the order does not depend on them. */
  begin?(slots: readonly Slot[]): void;
  /** The request becomes a candidate. It must not be one already. */
  add(request: RolloutRequest): void;
  /** The next request to serve, or null. Does not modify; the same answer until something changes. */
  peek(): RolloutRequest | null;
  /** The next request, if it has waited for so long that it goes ahead of sessions' turns too. Absent: none does. */
  overdue?(): RolloutRequest | null;
  /** Takes the request that `peek` returned out of the candidates. */
  take(request: RolloutRequest): void;
  /** Takes a request out because it was given up; nothing happens if it is no candidate. */
  remove(request: RolloutRequest): void;
  /** The group's estimate has changed, or one of its responses has ended; also where none of its requests waits. */
  refresh?(group: Group): void;
  /** Forgets a group that is complete. */
  forget?(group: Group): void;
  /** true: `request` runs in the high class of the draft budget. Absent: none does. */
  isUrgent?(request: RolloutRequest): boolean;
}

/** A client's priority comes before everything else that orders requests: keys below are smaller than this. */
export const PRIORITY_STRIDE = 2 ** 32;
/** |priority| of a request, at most: keys stay exact in a double. */
export const PRIORITY_MAX = 2 ** 20;

/** First come, first served; a request that has begun keeps its place. */
export function byArrival(request: RolloutRequest): number {
  return request.priority * PRIORITY_STRIDE + request.spec.requestId;
}
