// What goes wrong in one run of the fault tests: everything is drawn from the seed, so the seed repeats the run. Faults
// come first; then everything heals, and everything must finish.

import { DRAFT_MODES, type DraftMode } from "../../../src/core/draft/registry.ts";
import { POLICY_NAMES, type PolicyName } from "../../../src/core/schedule/policies.ts";
import { Random } from "../../suite/random.ts";

export type LostPart = "up" | "down" | "end";

export type Fault =
  /** The worker dies at once, with all its state. */
  | { readonly kind: "kill"; readonly worker: number }
  /** A worker more. */
  | { readonly kind: "join" }
  /** Latency of frames to and from the worker from now on; 0: the initial one. */
  | { readonly kind: "slow"; readonly worker: number; readonly latencyMs: number }
  /** The link loses everything; it notices after a while and gives the worker up. */
  | { readonly kind: "cut"; readonly worker: number }
  /** The next frame in that direction is lost; the link notices after a while and gives the worker up. */
  | { readonly kind: "lose"; readonly worker: number; readonly direction: LostPart }
  /** The next frame of tokens comes twice. */
  | { readonly kind: "repeat"; readonly worker: number }
  /** The engine drops the KV that has been parked longest. */
  | { readonly kind: "evict"; readonly worker: number }
  /** The KV pool loses everything. */
  | { readonly kind: "pool_lost" }
  /** Draft groups are forgotten, and what was sent for them is asked for again. */
  | { readonly kind: "drafts_lost"; readonly worker: number }
  /** A pause of generation for a while: no request runs, or no new one begins. */
  | { readonly kind: "pause"; readonly mode: "keep" | "wait"; readonly ms: number }
  /** A client gives a response up, or its text is complete. */
  | { readonly kind: "end"; readonly request: number; readonly reason: "abort" | "stop" }
  /** Every worker gets the weights of the next epoch. */
  | { readonly kind: "advance" }
  /** The journal is not written any more. */
  | { readonly kind: "disk_full" }
  /** The sidecar dies with its workers, and another one goes on from the journal, whose last write may be torn. */
  | { readonly kind: "sidecar_killed" };

export interface FaultPlan {
  readonly seed: number;
  readonly policy: PolicyName;
  readonly draft: DraftMode;
  readonly chunkTokens: number;
  /** Capacity of each worker, in order. */
  readonly capacities: readonly { readonly slots: number; readonly kvTokens: number }[];
  readonly poolBytes: number;
  readonly workers: number;
  readonly groups: readonly { readonly size: number; readonly divisible: boolean }[];
  /** Virtual ms between two writes of the journal. */
  readonly flushMs: number;
  readonly lengthSeed: number;
  /** Ascending in time, virtual ms. */
  readonly faults: readonly { readonly atMs: number; readonly fault: Fault }[];
  readonly healMs: number;
}

export const FAULT_TOKENS_MAX = 60;
export const FAULT_PROMPT_MAX = 5;

const WORKERS_MAX = 4;
const HEAL_MS = 150;

export function planFaults(seed: number): FaultPlan {
  const random = new Random(seed, "faults");
  const pick = <T>(values: readonly [T, ...T[]]): T =>
    values[random.below(values.length)] ?? values[0];
  const workers = 1 + random.below(WORKERS_MAX);
  const count = random.below(12);
  const times = Array.from({ length: count }, () => random.below(HEAL_MS)).sort((a, b) => a - b);
  return {
    seed,
    policy: pick(POLICY_NAMES),
    draft: pick(DRAFT_MODES),
    chunkTokens: 1 + random.below(FAULT_TOKENS_MAX),
    capacities: Array.from({ length: 1 + random.below(WORKERS_MAX) }, () => ({
      slots: 1 + random.below(6),
      kvTokens: FAULT_TOKENS_MAX + FAULT_PROMPT_MAX + 1 + random.below(300),
    })),
    poolBytes: pick([0, 16, 1_000_000]),
    workers,
    groups: Array.from({ length: 1 + random.below(6) }, () => ({
      size: 1 + random.below(5),
      divisible: random.below(4) > 0,
    })),
    flushMs: 1 + random.below(20),
    lengthSeed: random.below(2 ** 31),
    faults: times.map((atMs) => ({ atMs, fault: faultOf(random, workers) })),
    healMs: HEAL_MS,
  };
}

export function pickLost(random: Random): LostPart {
  return (["up", "down", "end"] as const)[random.below(3)] ?? "end";
}

const KILLED: Fault = { kind: "sidecar_killed" };

function faultOf(random: Random, workers: number): Fault {
  const worker = random.below(workers + 1);
  const slow = (): Fault => ({ kind: "slow", worker, latencyMs: random.below(60) });
  const isOne = (of: number) => random.below(of) === 0;
  const faults: readonly (() => Fault)[] = [
    () => ({ kind: "kill", worker }),
    () => ({ kind: "join" }),
    ...[slow, slow],
    () => ({ kind: "cut", worker }),
    () => ({ kind: "lose", worker, direction: pickLost(random) }),
    () => ({ kind: "repeat", worker }),
    () => ({ kind: "evict", worker }),
    () => ({ kind: "pool_lost" }),
    () => ({ kind: "drafts_lost", worker }),
    () => ({ kind: "pause", mode: isOne(4) ? "wait" : "keep", ms: random.below(40) }),
    () => ({ kind: "end", request: random.below(30), reason: isOne(2) ? "abort" : "stop" }),
    () => ({ kind: "advance" }),
    () => ({ kind: "advance" }),
    () => (isOne(4) ? { kind: "disk_full" } : KILLED),
  ];
  return faults[random.below(16)]?.() ?? KILLED;
}
