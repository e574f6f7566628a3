// Which scheduler each policy name means.

import { unreachable } from "../base/assert.ts";
import type { ContextManager } from "../context/context.ts";
import type { RequestBuffer } from "../request/buffer.ts";
import { FifoPolicy } from "../schedule/fifo.ts";
import type { IndexedHeap, PolicyName } from "../schedule/policy.ts";
import { ProbeFirstPolicy } from "../schedule/probe-first.ts";
import { Scheduler } from "../schedule/scheduler.ts";

export function schedulerFor(
  policy: PolicyName,
  options: {
    buffer: RequestBuffer;
    context: ContextManager;
    chunkTokens: number;
    newHeap: () => IndexedHeap;
  },
): Scheduler {
  const { buffer, context, chunkTokens, newHeap } = options;
  const { groups, requests } = buffer;
  switch (policy) {
    case "group":
      return new Scheduler(new FifoPolicy(requests, newHeap()), { kind: "pinned" });
    case "divided":
      return new Scheduler(new FifoPolicy(requests, newHeap()), { kind: "divided", chunkTokens });
    case "seer": {
      const heaps = { probes: newHeap(), lengths: newHeap(), served: newHeap() };
      const order = new ProbeFirstPolicy({ groups, requests, context, heaps });
      return new Scheduler(order, { kind: "divided", chunkTokens });
    }
    default:
      return unreachable(policy);
  }
}
