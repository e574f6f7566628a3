// The registry of policies: one row each. `--policy` (its choices and help), `--compare`, the defaults of drafts, the
// simulator's systems and the tests over all policies are read from it. A new one is a row, last in the table, and a file.
// - A number for each request, fixed while it waits, the lowest first: a function for `KeyedPolicy`, as in fewest-tokens.ts.
// - A number that follows the group's estimate: a class as KeyedPolicy (keyed.ts), whose `refresh(group)` calls
//   `heap.update(request.index, key)` for the group's waiting requests. A number for each group: as probe-first.ts.
// - Tests: scheduler.test.ts, as "seer: a group whose estimate rises while it waits moves up", and for one that is bounded
//   a row of CASES in bounded-wait.test.ts. Tests of faults and of the simulator run over all rows; no other list has them.

import type { ContextManager } from "../context/context.ts";
import type { DraftMode } from "../draft/registry.ts";
import type { Requests } from "../request/buffer.ts";
import type { CoreExports } from "../wasm/load.ts";
import { BoundedWaitPolicy } from "./bounded-wait.ts";
import type { ChunkLength } from "./chunk-length.ts";
import { FewestTokensPolicy } from "./fewest-tokens.ts";
import { KeyedPolicy } from "./keyed.ts";
import { byArrival, type SchedulePolicy } from "./policy.ts";
import { ProbeFirstPolicy } from "./probe-first.ts";
import { type DispatchMode, Scheduler } from "./scheduler.ts";

export interface PolicyParts {
  readonly buffer: Requests;
  /**
   * `estimate(group)`: tokens of its longest response, `max_tokens` until one has ended. `learned(group)`: the same, null
   * until then. `prior(group)`: by earlier epochs, or null.
   */
  readonly context: ContextManager;
  readonly chunks: ChunkLength;
  /** Holds the heaps, which order indices by keys. `update` and `remove` of an absent index return false. */
  readonly core: CoreExports;
}

interface Policy {
  readonly help: string;
  /** Draft mode where no other is chosen. */
  readonly draft: DraftMode;
  /** false: whole groups, each pinned to a worker. */
  readonly isDivided: boolean;
  /** null: first come, first served. No request waits without end, whatever the order (`bounded-wait.ts`). */
  readonly order: ((parts: PolicyParts) => SchedulePolicy) | null;
}

const POLICIES = {
  group: {
    help: "whole groups, workers round robin, as in veRL",
    draft: "off",
    isDivided: false,
    order: null,
  },
  divided: {
    help: "chunks, first come first served",
    draft: "off",
    isDivided: true,
    order: null,
  },
  seer: {
    help: "chunks, probes first, longest group first",
    draft: "grouped",
    isDivided: true,
    order: (parts) => new ProbeFirstPolicy(parts),
  },
  foretoken: {
    help: "chunks, the response with the fewest tokens first where KV is short",
    draft: "grouped",
    isDivided: true,
    order: (parts) => new FewestTokensPolicy(parts),
  },
} as const satisfies Record<string, Policy>;

export type PolicyName = keyof typeof POLICIES;

export const POLICY_NAMES = Object.keys(POLICIES) as [PolicyName, ...PolicyName[]];

export const POLICY_HELP = POLICY_NAMES.map((name) => `${name}: ${POLICIES[name].help}`).join(". ");

export const DRAFTING = POLICY_NAMES.filter((name) => POLICIES[name].draft === "grouped");

/** Names of policies, each alone or with a way of drafting: "seer", "seer:off". */
export const RUNS = POLICY_NAMES.flatMap((one) => [one, `${one}:grouped`, `${one}:off`] as const);

export function runNamed(name: (typeof RUNS)[number]) {
  const [policy, draft] = name.split(":") as [PolicyName, DraftMode?];
  return { policy, draft: draft ?? POLICIES[policy].draft };
}

export function isDivided(policy: PolicyName): boolean {
  return POLICIES[policy].isDivided;
}

export function schedulerFor(name: PolicyName, parts: PolicyParts): Scheduler {
  const policy: Policy = POLICIES[name];
  const { chunks, context } = parts;
  const ordered = policy.order?.(parts) ?? new KeyedPolicy(parts, byArrival);
  const order = new BoundedWaitPolicy(parts, ordered, context.turnover);
  const mode: DispatchMode = policy.isDivided ? { kind: "divided", chunks } : { kind: "pinned" };
  return new Scheduler(order, mode, context.sessions);
}
