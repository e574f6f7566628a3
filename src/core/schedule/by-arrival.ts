// First come, first served: a request that has begun keeps its place. The order of `group` and `divided`, which know
// nothing about lengths.

import type { Request } from "../request/buffer.ts";
import { PRIORITY_STRIDE } from "./policy.ts";

export function byArrival(request: Request): number {
  return request.priority * PRIORITY_STRIDE + request.spec.requestId;
}
