// The options of a sidecar and of its server, its parts, and the interfaces of both as they run, and of their features.

import type { OpenWait } from "../core/base/waits.ts";
import type { DraftMode } from "../core/draft/registry.ts";
import type { PolicyName } from "../core/schedule/policies.ts";
import type { WorkerSource } from "../fleet/engines.ts";
import type { LearnedEpochs } from "../fleet/learned-epochs.ts";
import type { WorkerPool } from "../fleet/pool.ts";
import type { WeightUpdates } from "../fleet/updates.ts";
import type { EmbeddedKvPool, PoolOptions } from "../host/embedded-pool.ts";
import type { RunJournals } from "../host/journal-file.ts";
import type { Timers } from "../host/timers.ts";
import type { WeightsRoots } from "../server/control/weights-roots.ts";
import type { EngineEncoder, PoolCalls } from "../server/engine-calls.ts";
import type { PromptHistory } from "../server/history/prompt-history.ts";
import type { OpenStream, Served } from "../server/http.ts";
import type { Kept } from "../server/kept.ts";
import type { ChatRenderer } from "../server/openai/rendering.ts";
import type { SavedRequest } from "../server/openai/request-journals.ts";
import type { KnownRollouts, SavedRollout } from "../server/rollouts/known.ts";
import type { RolloutLimits } from "../server/rollouts/plan.ts";
import type { Route } from "../server/route.ts";
import type { Sidecar, SidecarLimits, SidecarReader } from "../server/sidecar.ts";
import type { WorkerRegistry, WorkerRegistryOptions } from "../server/worker-registry.ts";
import type { ThreadedEncoder } from "../text/encoder.ts";
import type { KeptWeights } from "./kept-weights.ts";
import type { ModelSide } from "./model.ts";
import type { OperatorLog } from "./operator-log.ts";

export interface ComposeOptions extends Partial<PoolOptions> {
  /** Folders that weights and adapters may be loaded from; null, the default: any folder. */
  readonly weightsRoots?: WeightsRoots;
  readonly limits?: Partial<SidecarLimits>;
  readonly rolloutLimits?: Partial<RolloutLimits>;
  readonly policy: PolicyName;
  readonly draft: DraftMode;
  /** Maximum of tokens in a chunk; null: chosen by the measured cost of a chunk's end. */
  readonly chunkTokens: number | null;
  /** Sources of the workers that are opened at the start. */
  readonly sources: readonly WorkerSource[];
  /**
   * Memory limit of responses of earlier weight epochs, which engines with the plugin draft from; 0, the default: none are
   * kept.
   */
  readonly historyBytes?: number;
  /** Directory that keeps /v1/rollouts and trajectories over the end of the process; null, the default: nothing does. */
  readonly journal?: string | null;
  readonly model: ModelSide;
  /** The sidecar has started when this many workers have been ready at the same time. Default: 1. */
  readonly workersMin?: number;
  /** Milliseconds for which a request with an id continues after its client disconnected. */
  readonly retryGraceMs: number;
  /** Milliseconds for an engine to answer a control request, and between calls of an open weight update. */
  readonly weightsTimeoutMs: number;
  readonly version: string;
  readonly events: OperatorLog;
}

export interface ServeOptions extends ComposeOptions {
  readonly host: string;
  readonly port: number;
  readonly apiToken: string | null;
  readonly allowOrigins?: readonly string[];
  /** Options of POST /workers, by which workers join later. */
  readonly joining: WorkerRegistryOptions;
}

/** A feature of the server: features.ts has a row for each. */
export interface Feature {
  readonly routes?: readonly Route[];
  readonly sockets?: Served["sockets"];
  /** Reader of requests' events. */
  readonly observer?: SidecarReader;
  /** Reader of the server's events, beside the operator. */
  readonly log?: Partial<OperatorLog>;
  /** Memory kept for finished work, by kind: /metrics shows it. */
  readonly kept?: Readonly<Record<string, () => Kept>>;
  /** Called when all requests have ended and no new one can begin. */
  readonly drained?: () => void;
  /** Called when the server stops, before the rollout does. */
  readonly close?: () => void;
  /** Called when the rollout has stopped, while connections are still open. */
  readonly stopped?: () => Promise<void>;
}

/** Resources that are opened before the sidecar, and closed after it. */
export interface Resources {
  readonly kv: EmbeddedKvPool;
  readonly history: PromptHistory | null;
  readonly journals: RunJournals | null;
}

/** The HTTP server in front of the sidecar, as far as features need it. */
export interface Front {
  readonly registry: WorkerRegistry;
  /** The body whose turn to be read comes next; null: none waits. */
  readonly bodyWait: () => OpenWait | null;
}

/** Requests and rollouts of an earlier process. */
export interface Saved {
  readonly requests: readonly SavedRequest[];
  readonly rollouts: readonly SavedRollout[];
}

export interface Parts extends Resources {
  readonly options: ComposeOptions;
  /** The HTTP server; null: there is none, and the sidecar is used in this process alone. */
  readonly front: Front | null;
  /** The log that gets every event for the operator. */
  readonly log: OperatorLog;
  readonly timers: Timers;
  readonly saved: Saved;
  readonly pool: WorkerPool;
  readonly sidecar: Sidecar;
  readonly weights: WeightUpdates;
  readonly kept: KeptWeights;
  readonly learned: LearnedEpochs;
  readonly engines: PoolCalls;
  readonly encoder: EngineEncoder | ThreadedEncoder;
  readonly chats: ChatRenderer;
}

/** A sidecar in this process. */
export interface RunningSidecar extends Pick<Parts, "sidecar" | "kv" | "encoder" | "chats"> {
  /** Rollouts as POST /v1/rollouts runs them: whole iterations. */
  readonly rollouts: KnownRollouts;
  /** What a server in front of it serves. */
  readonly served: Pick<Served, "routes" | "sockets">;
  /** Resolves when each worker has been tried once. @throws AppError: no further try would open one. */
  readonly opened: Promise<void>;
  /** Whether the wanted number of workers has been ready at the same time. */
  hasStarted(): boolean;
  /** Refuses new requests; resolves when all requests in flight have ended. */
  drain(): Promise<void>;
  /** Ends everything at once. `hangUp` is called when requests have ended, before the parts that answer them are closed. */
  stop(hangUp?: () => Promise<void>): Promise<void>;
}

/** A sidecar behind an HTTP port. */
export interface RunningServer extends RunningSidecar {
  readonly url: URL;
  /** Streams that are being written. */
  streams(): OpenStream[];
  /**
   * Drains the sidecar; resolves when every client has read its answer, too.
   * @throws AppError deadline_exceeded: clients do not read theirs.
   */
  drain(): Promise<void>;
}

export type BindOptions = Omit<ServeOptions, "model" | "sources">;
