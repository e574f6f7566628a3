// StreamRL-Oracle, a baseline of the paper: whole requests, dispatched by their true lengths. The longest fifth goes
// to instances of its own; within each part, longest first to the instance with the least work.

import { present } from "../../core/base/assert.ts";
import type { WorkerId } from "../../core/base/ids.ts";
import type { Request } from "../../core/request/buffer.ts";
import { KeyedPolicy } from "../../core/schedule/keyed.ts";
import { Scheduler } from "../../core/schedule/scheduler.ts";
import { Heap } from "../../core/wasm/heap.ts";
import type { SchedulerParts } from "./simulation.ts";

/** StreamRL (2504.15930) calls the longest 20 % the long tail. */
const TAIL_SHARE = 0.2;

export function streamRlOracle({ buffer, core, lengthOf }: SchedulerParts): Scheduler {
  const keyOf = (request: Request) => -lengthOf(request);
  const order = new KeyedPolicy({ buffer, heap: new Heap(core), keyOf });
  let places: ReadonlyMap<Request, WorkerId> | null = null;
  return new Scheduler(order, {
    kind: "pinned",
    pin: (request, able) => {
      const workers = able.map(({ workerId }) => workerId);
      places ??= placesOf([...buffer.requests], workers, lengthOf);
      const workerId = present(places.get(request), "all requests come at once");
      return able.find((slot) => slot.workerId === workerId);
    },
  });
}

function placesOf(
  requests: Request[],
  workers: readonly WorkerId[],
  lengthOf: (request: Request) => number,
): Map<Request, WorkerId> {
  const places = new Map<Request, WorkerId>();
  const tokensOf = (some: readonly Request[]) => some.reduce((sum, one) => sum + lengthOf(one), 0);
  /** Longest first, each to the instance with the fewest tokens so far. */
  const spread = (some: readonly Request[], over: readonly WorkerId[]) => {
    const loads = over.map((workerId) => ({ workerId, tokens: 0 }));
    for (const request of some) {
      const least = loads.reduce((a, b) => (b.tokens < a.tokens ? b : a));
      least.tokens += lengthOf(request);
      places.set(request, least.workerId);
    }
  };
  requests.sort((a, b) => lengthOf(b) - lengthOf(a) || a.index - b.index);
  const tail = requests.slice(0, Math.ceil(requests.length * TAIL_SHARE));
  const rest = requests.slice(tail.length);
  const share = tokensOf(tail) / tokensOf(requests);
  const count = Math.max(1, Math.min(workers.length - 1, Math.round(share * workers.length)));
  if (workers.length === 1) {
    spread(requests, workers);
  } else {
    spread(tail, workers.slice(0, count));
    spread(rest, workers.slice(count));
  }
  return places;
}
