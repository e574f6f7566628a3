// Which scheduler each policy name means.

import { unreachable } from "../base/assert.ts";
import type { ContextManager } from "../context/context.ts";
import type { RequestBuffer } from "../request/buffer.ts";
import { byArrival, byFewestTokens, KeyedPolicy } from "../schedule/keyed.ts";
import type { PolicyName } from "../schedule/policy.ts";
import { ProbeFirstPolicy } from "../schedule/probe-first.ts";
import { Scheduler } from "../schedule/scheduler.ts";
import { Heap } from "../wasm/heap.ts";
import type { CoreExports } from "../wasm/load.ts";

export function schedulerFor(
  policy: PolicyName,
  options: {
    buffer: RequestBuffer;
    context: ContextManager;
    chunkTokens: number;
    core: CoreExports;
  },
): Scheduler {
  const { buffer, context, chunkTokens, core } = options;
  const keyed = (keyOf: typeof byArrival) =>
    new KeyedPolicy({ buffer, heap: new Heap(core), keyOf });
  switch (policy) {
    case "group":
      return new Scheduler(keyed(byArrival), { kind: "pinned" });
    case "divided":
      return new Scheduler(keyed(byArrival), {
        kind: "divided",
        chunkTokens,
      });
    case "seer": {
      const heaps = { probes: new Heap(core), lengths: new Heap(core), served: new Heap(core) };
      const order = new ProbeFirstPolicy({ buffer, context, heaps });
      return new Scheduler(order, { kind: "divided", chunkTokens });
    }
    case "foretoken":
      return new Scheduler(keyed(byFewestTokens), {
        kind: "divided",
        chunkTokens,
      });
    default:
      return unreachable(policy);
  }
}
