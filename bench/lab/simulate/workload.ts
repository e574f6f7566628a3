// The workloads: the paper's three (seer.md, Table 3), and any log of responses. A workload defines requests
// and engines; it does not schedule.

import {
  type Hardware,
  h800,
  KIMI_K2,
  MOONLIGHT,
  type ModelSpec,
  QWEN2_VL_72B,
} from "./hardware.ts";
import { type GroupLengths, type LengthShape, TRACE_SPREAD } from "./lengths.ts";
import type { Deployment, EngineConstants, Graphs } from "./step-time.ts";

export const WORKLOAD_NAMES = ["moonlight", "qwen2-vl-72b", "kimi-k2"] as const;
export type WorkloadName = (typeof WORKLOAD_NAMES)[number];

/** How the veRL + SD baseline of the paper drafts (its Fig. 11). */
export type VanillaDraft =
  /** Suffix decoding from the response's own text. */
  | { readonly kind: "self" }
  /** A draft model or an extra head: constant acceptance, and milliseconds for each draft token. */
  | {
      readonly kind: "model";
      readonly acceptance: number;
      readonly gammaMax: number;
      readonly draftMs: number;
    };

export interface Workload {
  readonly name: string;
  readonly hardware: Hardware;
  readonly model: ModelSpec;
  readonly deployment: Deployment;
  readonly instances: number;
  /** Instances whose steps take `factor` times as long on the device; default: none. */
  readonly slow?: { readonly instances: number; readonly factor: number };
  readonly promptTokens: number;
  readonly shape: LengthShape;
  /** Lengths to use in place of sampled ones. */
  readonly lengths?: GroupLengths;
  readonly constants: EngineConstants;
  /** Step times by batch; default: modelled. */
  readonly graphs?: Graphs;
  /** Times of training and update in an iteration of veRL, over the rollout's (paper, Table 1). */
  readonly after: { readonly training: number; readonly update: number };
  readonly vanilla: VanillaDraft;
  /** Mean acceptance length of a linear draft from the response's own text (paper, Table 2 and Fig. 11). */
  readonly selfAcceptanceLength: number;
}

/**
 * max_num_seqs: requests that one data-parallel rank runs at the same time. vLLM's default for years; with 512 or more
 * veRL's last responses on Qwen2-VL would begin at 0 to 32 % of the time, and the paper reports 42 %.
 */
const RANK_SLOTS = 256;

export function engineSlots(deployment: Deployment): number {
  return deployment.kind === "experts" ? RANK_SLOTS * deployment.gpus : RANK_SLOTS;
}

/**
 * Correlation of log lengths within a group. Fitted on veRL's idle share and finish spread on Qwen2-VL: above the
 * traces' 0.71 to 0.83, so the paper's groups are more alike than those.
 */
const CORRELATION = 0.95;

/** The paper gives no prompt lengths: some hundred tokens for mathematics, an image and a question for vision. */
const MATH_PROMPT_TOKENS = 256;
const VISION_PROMPT_TOKENS = 1280;

/** Draft tokens whose acceptance (1 - a^(g+1)) / (1 - a) is the published mean acceptance length. */
const QWEN_7B_DRAFT: VanillaDraft = {
  kind: "model",
  acceptance: 0.6,
  gammaMax: 3,
  // Fitted on veRL with SD. Its roofline is 1.5 ms: 15.2 GB over 8 GPUs, and 28 layers of two all-reduces.
  draftMs: 9,
};
const MTP_HEAD: VanillaDraft = { kind: "model", acceptance: 0.74, gammaMax: 1, draftMs: 2 };

/**
 * Part of training that needs no other response: old and reference logprobs, 2 FLOPs a parameter and token each, beside
 * 6 of forward and backward.
 */
export const FORWARD_PART = 4 / 10;

export const WORKLOADS: Readonly<Record<WorkloadName, Workload>> = {
  moonlight: {
    name: "moonlight",
    hardware: h800(0.7),
    model: MOONLIGHT,
    deployment: { gpus: 1, kind: "tensor" },
    instances: 32,
    promptTokens: MATH_PROMPT_TOKENS,
    shape: shapeOf({
      groups: 400,
      groupSize: 8,
      tokensMax: 65_536,
      tokensMean: 22_386,
      spread: TRACE_SPREAD,
    }),
    constants: { slowdown: 1.45, speculation: 0.15 },
    after: { training: 14 / 84, update: 2 / 84 },
    vanilla: { kind: "self" },
    selfAcceptanceLength: 1.67,
  },
  "qwen2-vl-72b": {
    name: "qwen2-vl-72b",
    hardware: h800(0.7),
    model: QWEN2_VL_72B,
    deployment: { gpus: 8, kind: "tensor" },
    instances: 16,
    promptTokens: VISION_PROMPT_TOKENS,
    shape: shapeOf({
      groups: 600,
      groupSize: 16,
      tokensMax: 40_960,
      tokensMean: 7_615,
      // Fitted on veRL's tail, idle share and finish spread: the task mixes vision and language.
      spread: 1.2,
    }),
    constants: { slowdown: 1.21, speculation: 0.13 },
    after: { training: 31 / 63, update: 6 / 63 },
    vanilla: QWEN_7B_DRAFT,
    selfAcceptanceLength: 1.7,
  },
  "kimi-k2": {
    name: "kimi-k2",
    // The weights alone take 53 % of the memory.
    hardware: h800(0.9),
    model: KIMI_K2,
    deployment: { gpus: 32, kind: "experts" },
    instances: 8,
    promptTokens: MATH_PROMPT_TOKENS,
    shape: shapeOf({
      groups: 800,
      groupSize: 8,
      tokensMax: 98_304,
      tokensMean: 38_959,
      spread: TRACE_SPREAD,
    }),
    constants: { slowdown: 2.63, speculation: 0.25 },
    // The table has the rollout's 87 % alone; the rest is divided as Moonlight's.
    after: { training: 11.4 / 87, update: 1.6 / 87 },
    vanilla: MTP_HEAD,
    selfAcceptanceLength: 1.67,
  },
};

function shapeOf(shape: Omit<LengthShape, "correlation">): LengthShape {
  return { ...shape, correlation: CORRELATION };
}
