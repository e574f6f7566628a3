// The policies by name: the order of requests, whether they are divided, and whether drafts are a part of the policy. A
// new order is a file beside this one, a line here, and a choice of --policy.

import type { ContextManager } from "../context/context.ts";
import type { DraftMode } from "../draft/registry.ts";
import type { RequestBuffer } from "../request/buffer.ts";
import { Heap } from "../wasm/heap.ts";
import type { CoreExports } from "../wasm/load.ts";
import { BoundedWaitPolicy } from "./bounded-wait.ts";
import type { ChunkLength } from "./chunk-length.ts";
import { byArrival, byFewestTokens, KeyedPolicy } from "./keyed.ts";
import type { SchedulePolicy } from "./policy.ts";
import { ProbeFirstPolicy } from "./probe-first.ts";
import { Scheduler } from "./scheduler.ts";

export interface PolicyParts {
  readonly buffer: RequestBuffer;
  readonly context: ContextManager;
  readonly chunks: ChunkLength;
  /** Holds the heaps. */
  readonly core: CoreExports;
}

interface Policy {
  /** Where nothing else is chosen. */
  readonly draft: DraftMode;
  /** false: whole groups, each pinned to a worker. */
  readonly isDivided: boolean;
  readonly order: (parts: PolicyParts) => SchedulePolicy;
}

const keyed =
  (keyOf: typeof byArrival) =>
  ({ buffer, core }: PolicyParts): SchedulePolicy =>
    new KeyedPolicy({ buffer, heap: new Heap(core), keyOf });

// biome-ignore format: one policy a line
const POLICIES = {
  group: { draft: "off", isDivided: false, order: keyed(byArrival) },
  divided: { draft: "off", isDivided: true, order: keyed(byArrival) },
  seer: { draft: "grouped", isDivided: true, order: probeFirst },
  foretoken: { draft: "grouped", isDivided: true, order: fewestTokens },
} as const satisfies Record<string, Policy>;

export type PolicyName = keyof typeof POLICIES;

export const POLICY_NAMES = Object.keys(POLICIES) as [PolicyName, ...PolicyName[]];

/** How a policy drafts where nothing else is chosen. */
export function defaultDraft(policy: PolicyName): DraftMode {
  return POLICIES[policy].draft;
}

export function schedulerFor(policy: PolicyName, parts: PolicyParts): Scheduler {
  const { isDivided, order } = POLICIES[policy];
  const { chunks } = parts;
  return new Scheduler(order(parts), isDivided ? { kind: "divided", chunks } : { kind: "pinned" });
}

function fewestTokens(parts: PolicyParts): SchedulePolicy {
  const { buffer, context, core } = parts;
  const keyOf = byFewestTokens((group) => context.prior(group));
  return bounded(new KeyedPolicy({ buffer, heap: new Heap(core), keyOf }), parts);
}

function probeFirst(parts: PolicyParts): SchedulePolicy {
  const { buffer, context, core } = parts;
  const heaps = { probes: new Heap(core), lengths: new Heap(core), served: new Heap(core) };
  return bounded(new ProbeFirstPolicy({ buffer, context, heaps }), parts);
}

/** Its order, in which no request waits without end. */
function bounded(policy: SchedulePolicy, { buffer, context, core }: PolicyParts): SchedulePolicy {
  const { turnover } = context;
  return new BoundedWaitPolicy({ policy, buffer, turnover, arrivals: new Heap(core) });
}
