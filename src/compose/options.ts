// The options of a sidecar and of its server, and the interfaces of both as they run, and of their features.

import type { DraftMode } from "../core/draft/registry.ts";
import type { PolicyName } from "../core/schedule/policies.ts";
import type { WorkerSource } from "../fleet/engines.ts";
import type { PoolOptions } from "../host/embedded-pool.ts";
import type { WeightsRoots } from "../server/control/weights-roots.ts";
import type { OpenStream, Served } from "../server/http.ts";
import type { Kept } from "../server/kept.ts";
import type { KnownRollouts } from "../server/rollouts/known.ts";
import type { RolloutLimits } from "../server/rollouts/plan.ts";
import type { Route } from "../server/route.ts";
import type { Sidecar, SidecarLimits, SidecarReader } from "../server/sidecar.ts";
import type { WorkerRegistry, WorkerRegistryOptions } from "../server/worker-registry.ts";
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

/** A sidecar in this process. */
export interface RunningSidecar {
  readonly sidecar: Sidecar;
  /** Rollouts as POST /v1/rollouts runs them: whole iterations. */
  readonly rollouts: KnownRollouts;
  /** Resolves when each worker has been tried once. @throws AppError: no further try would open one. */
  readonly opened: Promise<void>;
  /** Whether the wanted number of workers has been ready at the same time. */
  hasStarted(): boolean;
  /** Refuses new requests; resolves when all requests in flight have ended. */
  drain(): Promise<void>;
  /** Ends everything at once. */
  stop(): Promise<void>;
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

/** A server whose port is open but that serves nothing yet; /health gives the reason. */
export interface BoundServer {
  readonly url: URL;
  /** Sets the reason that /health answers with until serving begins. */
  waitFor(what: string): void;
  /** Workers that clients name. */
  readonly registry: WorkerRegistry;
  /** Starts serving, and begins to open the workers. Call it once. @throws AppError: the core cannot be loaded. */
  serve(model: ModelSide, sources: readonly WorkerSource[]): Promise<RunningServer>;
  /** Ends every connection. */
  stop(): Promise<void>;
}
