// What a whole sidecar, its engines and its trainer go through in one run, all drawn from the seed. In every third run
// nothing goes wrong, and every call must be answered as in the documentation. In every second run requests are drafted,
// end by stop tokens or cannot be divided, and KV, drafts and journals are lost; their draws are their own, so that the
// seeds that found something still find it.

import { present } from "../../../src/core/base/assert.ts";
import { DRAFT_MODES, type DraftMode } from "../../../src/core/draft/registry.ts";
import { POLICY_NAMES, type PolicyName } from "../../../src/core/schedule/policies.ts";
import { Random } from "../../suite/random.ts";
import type { ControlFault } from "./engine-server.ts";
import type { LostPart } from "./link.ts";

export type EngineFault =
  | { readonly kind: "kill" | "stop"; readonly engine: number; readonly ms: number }
  /** drafts_lost: its draft groups are forgotten, and what was sent for them is asked for again. */
  | { readonly kind: "cut" | "repeat" | "evict" | "drafts_lost"; readonly engine: number }
  | { readonly kind: "lose"; readonly engine: number; readonly direction: LostPart }
  | { readonly kind: "slow"; readonly engine: number; readonly ms: number }
  | { readonly kind: "control"; readonly engine: number; readonly fault: ControlFault };

export type SidecarFault =
  | EngineFault
  /** The KV pool loses everything; the journals are not written any more. */
  | { readonly kind: "pool_lost" }
  | { readonly kind: "disk_full" }
  /**
   * The sidecar dies, and another one goes on from its journals; of the write under way this share is there. `engine`
   * restarts meanwhile, which no sidecar sees; null: none does.
   */
  | { readonly kind: "sidecar_killed"; readonly share: number; readonly engine: number | null };

/**
 * How a trainer updates the weights. dies: it sends a part and nothing more, and another trainer begins. aborted: it gives the
 * update up after a part.
 */
export type UpdateKind = "parts" | "disk" | "sleep" | "dies" | "aborted";

export interface IterationPlan {
  readonly work: "rollout" | "requests" | "sessions";
  readonly isStrict: boolean;
  readonly groups: number;
  readonly size: number;
  readonly tokens: number;
  /** Some tokens end a response. */
  readonly stops: boolean;
  /** Engines take its responses in one piece only, so that they begin anew when one dies. */
  readonly isWhole: boolean;
  readonly update: UpdateKind;
  /** The weights change while responses are being generated, after so many ms; null: when all have come. */
  readonly updateMs: number | null;
  /** The trainer's own pause around the update. */
  readonly pause: "keep" | "wait" | "abort" | null;
  /** The trainer gives up its requests after so many ms; null: it does not. */
  readonly abortMs: number | null;
  /** An engine that leaves after so many ms, and joins again as long after that; null: none does. */
  readonly leaving: { readonly engine: number; readonly ms: number } | null;
}

export interface SidecarPlan {
  readonly seed: number;
  readonly policy: PolicyName;
  readonly draft: DraftMode;
  readonly chunkTokens: number;
  readonly engines: readonly { readonly slots: number; readonly kvTokens: number }[];
  readonly poolBytes: number;
  /** Engines report the logprobs of their canary, by which wrong weights are seen. */
  readonly hasCanary: boolean;
  readonly iterations: readonly IterationPlan[];
  readonly faults: readonly { readonly atMs: number; readonly fault: SidecarFault }[];
}

export const SIDECAR_TOKENS_MAX = 80;
export const SIDECAR_CONTEXT_MAX = 400;

export const ITERATIONS = 6;
/** Faults come until then. */
export const FAULTS_MS = 900;

export function planSidecar(seed: number): SidecarPlan {
  const random = new Random(seed, "sidecar");
  const pick = <T>(values: readonly [T, ...T[]]): T =>
    values[random.below(values.length)] ?? values[0];
  const count = seed % 3 === 0 ? 0 : 1 + random.below(5);
  const engines = 1 + random.below(3);
  const hasCanary = seed % 4 !== 1;
  const isMoving = count > 0 && seed % 7 === 6;
  const others = new Random(seed, "membership");
  const varied = new Random(seed, "requests");
  const isVaried = seed % 2 === 0;
  const losses = isVaried && count > 0 ? varied.below(5) : 0;
  const times = Array.from({ length: count }, () => random.below(FAULTS_MS)).sort((a, b) => a - b);
  return {
    seed,
    policy: pick(POLICY_NAMES),
    draft: isVaried ? (DRAFT_MODES[varied.below(DRAFT_MODES.length)] ?? "off") : "off",
    chunkTokens: pick([4, 16, 1000]),
    engines: Array.from({ length: engines }, () => ({
      slots: 1 + random.below(6),
      kvTokens: SIDECAR_CONTEXT_MAX + random.below(600),
    })),
    poolBytes: pick([0, 64, 1_000_000]),
    hasCanary,
    iterations: Array.from(
      { length: ITERATIONS },
      (): IterationPlan => ({
        work: pick(["rollout", "rollout", "requests", "sessions"]),
        isStrict: random.below(2) === 0,
        groups: 1 + random.below(3),
        size: 1 + random.below(4),
        tokens: 1 + random.below(SIDECAR_TOKENS_MAX),
        ...{ stops: false, isWhole: false },
        update: pick(["parts", "parts", "parts", "disk", "sleep", "dies"]),
        updateMs: random.below(2) === 0 ? 1 + random.below(80) : null,
        // What waits for responses waits for ever if engines wait for weights that only the trainer has.
        pause: pick([null, null, "keep", count === 0 ? "wait" : "keep", "abort"]),
        abortMs: random.below(6) === 0 ? random.below(60) : null,
        leaving: null,
      }),
    )
      .map((plan) => (isMoving ? moving(plan, others, engines) : plan))
      .map((plan) => (isVaried ? ending(plan, varied) : plan)),
    faults: [
      ...times.map((atMs) => {
        const fault = faultOf(random, engines, hasCanary);
        // Only a canary tells which weights a server has that cannot name them.
        const isUnseen = hasCanary && fault.kind === "sidecar_killed" && atMs % 3 === 0;
        return { atMs, fault: isUnseen ? { ...fault, engine: atMs % engines } : fault };
      }),
      ...Array.from({ length: losses }, () => {
        return { atMs: varied.below(FAULTS_MS), fault: lossOf(varied, engines) };
      }),
    ],
  };
}

/** Engines come and go, and updates are given up. */
function moving(plan: IterationPlan, random: Random, engines: number): IterationPlan {
  const update = random.below(4) === 0 ? "aborted" : plan.update;
  const engine = random.below(2 * engines);
  const leaving = engines > 1 && engine < engines ? { engine, ms: random.below(60) } : null;
  return { ...plan, update, leaving };
}

/** Responses end by a token, or cannot be divided. */
function ending(plan: IterationPlan, random: Random): IterationPlan {
  return { ...plan, stops: random.below(2) === 0, isWhole: random.below(4) === 0 };
}

const LOSSES = ["evict", "drafts_lost", "pool_lost", "disk_full"] as const;

function lossOf(random: Random, engines: number): SidecarFault {
  const kind = LOSSES[random.below(LOSSES.length)] ?? "evict";
  const isOfEngine = kind === "evict" || kind === "drafts_lost";
  return isOfEngine ? { kind, engine: random.below(engines) } : { kind };
}

const LOST: readonly LostPart[] = ["up", "down", "end"];

const CONTROL_FAULTS: readonly ControlFault[] = ["fail", "refuse", "hang", "wrong"];

function faultOf(random: Random, engines: number, hasCanary: boolean): SidecarFault {
  const engine = random.below(engines);
  const control = (): SidecarFault => {
    const fault = CONTROL_FAULTS[random.below(hasCanary ? 4 : 3)] ?? "fail";
    return { kind: "control", engine, fault };
  };
  const faults: readonly (() => SidecarFault)[] = [
    () => ({ kind: "kill", engine, ms: random.below(300) }),
    () => ({ kind: "stop", engine, ms: random.below(300) }),
    () => ({ kind: "cut", engine }),
    () => ({ kind: "lose", engine, direction: LOST[random.below(3)] ?? "end" }),
    () => ({ kind: "repeat", engine }),
    () => ({ kind: "slow", engine, ms: random.below(60) }),
    control,
    control,
    () => ({ kind: "sidecar_killed", share: random.below(100) / 100, engine: null }),
  ];
  return present(faults[random.below(9)], "one of nine")();
}
