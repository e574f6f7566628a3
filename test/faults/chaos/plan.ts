// What happens to one rollout: everything is drawn from the seed, so the seed repeats it. A fault begins when the rollout
// has generated a share of its tokens, because speeds differ between machines.

import { Random } from "../../suite/random.ts";

export const CHAOS_KINDS = [
  /** kill -9 of an engine server; it is started again after a while. */
  "worker_kill",
  /** SIGSTOP of an engine server, later SIGCONT. */
  "worker_stop",
  /** The connections to a server are closed, and new ones refused for a while. */
  "link_cut",
  /** The connections to a server stay open and pass nothing. */
  "link_silent",
  /** Every byte to and from a server is late. */
  "link_slow",
  /** Writes of the journal fail, the first one in its middle. */
  "disk_full",
  /** kill -9 of the sidecar; it is started again after a while. */
  "sidecar_kill",
  /** SIGSTOP of the sidecar, later SIGCONT. */
  "sidecar_stop",
  /** No fault: the trainer updates the weights. */
  "weights",
] as const;

export type ChaosKind = (typeof CHAOS_KINDS)[number];

export interface PlannedFault {
  readonly kind: ChaosKind;
  /** Index among the engine servers. */
  readonly worker: number;
  /** Share of the rollout's tokens after which the fault begins. */
  readonly share: number;
  /** Time until it is over, or until what was killed is started again. */
  readonly ms: number;
  /** Delay of every byte, where they are late. */
  readonly latencyMs: number;
}

export interface ChaosPlan {
  readonly seed: number;
  /** Selects the prompts. */
  readonly job: number;
  /** Faults in the order of their beginning. */
  readonly faults: readonly PlannedFault[];
}

/** Different sets of prompts: each is generated once undisturbed, whatever the number of seeds. */
export const JOBS = 6;
/** Engine servers. */
export const LINKS = 2;

const FAULTS_MAX = 4;
const LATENCY_MS_MAX = 80;

/** Milliseconds, least and most. */
const DURATIONS: Readonly<Record<ChaosKind, readonly [number, number]>> = {
  worker_kill: [0, 400],
  worker_stop: [50, 1_800],
  link_cut: [0, 300],
  link_silent: [50, 1_800],
  link_slow: [100, 800],
  disk_full: [100, 600],
  sidecar_kill: [0, 300],
  sidecar_stop: [50, 1_500],
  weights: [0, 0],
};

/** `kinds`: those that may be drawn. */
export function planChaos(seed: number, kinds: readonly ChaosKind[]): ChaosPlan {
  const random = new Random(seed, "chaos");
  const job = random.below(JOBS);
  const count = 1 + random.below(FAULTS_MAX);
  const faults = Array.from({ length: count }, () => faultOf(random, kinds));
  return { seed, job, faults: faults.toSorted((a, b) => a.share - b.share) };
}

function faultOf(random: Random, kinds: readonly ChaosKind[]): PlannedFault {
  const kind = kinds[random.below(kinds.length)] ?? "worker_kill";
  const [least, most] = DURATIONS[kind];
  return {
    kind,
    worker: random.below(LINKS),
    share: 0.9 * random.uniform(),
    ms: least + random.below(most - least + 1),
    latencyMs: 1 + random.below(LATENCY_MS_MAX),
  };
}
