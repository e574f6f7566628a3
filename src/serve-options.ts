// What a sidecar is started with, what it reports, and what its starter holds.

import type { DraftMode } from "./core/draft/registry.ts";
import type { IterationSummary } from "./core/rollout/iteration-span.ts";
import type { PolicyName } from "./core/schedule/policies.ts";
import type { Member, WorkerSource } from "./fleet/pool.ts";
import type { WeightsNotice } from "./fleet/updates.ts";
import type { WeightsRoots } from "./server/control/weights-roots.ts";
import type { DeadlineNotice } from "./server/deadlines.ts";
import type { AccessEntry, OpenStream } from "./server/http.ts";
import type { ServingState } from "./server/live/serving-state.ts";
import type { Sidecar, SidecarLimits } from "./server/sidecar.ts";
import type { WorkerRegistry, WorkerRegistryOptions } from "./server/worker-registry.ts";
import type { ModelSide } from "./sources.ts";

export interface ServeOptions {
  readonly host: string;
  readonly port: number;
  readonly apiToken: string | null;
  /** Folders that weights and adapters may be loaded from; null, the default: any. */
  readonly weightsRoots?: WeightsRoots;
  /** Further options of the HTTP server. */
  readonly allowOrigins?: readonly string[];
  readonly limits?: Partial<SidecarLimits>;
  readonly policy: PolicyName;
  readonly draft: DraftMode;
  /** null: chosen by what the end of a chunk costs. */
  readonly chunkTokens: number | null;
  readonly poolMemoryBytes: number;
  /** Size of the SSD tier, as in PoolOptions; default: no such tier. */
  readonly poolDiskBytes?: number;
  readonly poolDir?: string | null;
  /** Workers from the start. */
  readonly sources: readonly WorkerSource[];
  /** How workers come later, by POST /workers. Default: none does. */
  readonly joining?: WorkerRegistryOptions;
  /**
   * Limit of responses of earlier weight epochs, which engines with the plugin draft from; 0, the default: none are
   * kept.
   */
  readonly historyBytes?: number;
  /** File for the last iterations; null, the default: they are kept in memory. */
  readonly iterationsFile?: string | null;
  /** Directory that keeps /v1/rollouts and the history over the end of the process; null, the default: nothing does. */
  readonly journal?: string | null;
  readonly model: ModelSide;
  /** /health is 503 until this many workers have been ready at the same time. Default: 1. */
  readonly workersMin?: number;
  /** Milliseconds for which a request with an id continues after its client disconnected. */
  readonly retryGraceMs: number;
  /** Milliseconds for an engine to answer a control request, and between calls of an open weight update. */
  readonly weightsTimeoutMs: number;
  readonly version: string;
  readonly events: ServeEvents;
}

/** Events for the operator's log. */
export interface ServeEvents {
  workerChanged(member: Member): void;
  weightsChanged(epoch: number, version: string): void;
  weightsNotice(notice: WeightsNotice): void;
  /** An engine's plugin, or its output, shows that its sampler verifies drafts wrongly: it gets none. */
  notLossless(engine: string, reason: string): void;
  /** A request that made workers die was ended. `reason` names it and them. */
  quarantined(reason: string): void;
  answered(entry: AccessEntry): void;
  /** A request was ended with an error that an engine gave, or that an engine is to blame for. */
  refused(entry: RefusedEntry): void;
  iterationEnded(summary: IterationSummary): void;
  /** The serving state has changed. Also called every minute while requests wait for it. */
  stateChanged(state: ServingState & { waiting: number; seconds: number }): void;
  /** A deadline has ended responses. */
  deadline(notice: DeadlineNotice): void;
  /** Rollouts of an earlier process have gone on. */
  resumed(rollouts: number): void;
  /** A journal is not written any more; its rollout goes on without it. */
  journalFailed(error: unknown): void;
  /** All responses are generated, but these clients have not read theirs: the server stops when they have, or stall. */
  unread(streams: readonly OpenStream[]): void;
  failed(error: unknown): void;
  /** A bug stopped the rollout: nothing can be served any more. */
  broken(error: unknown): void;
}

export interface RefusedEntry {
  /** The rollout's number of the request. */
  readonly request: number;
  readonly worker: string | null;
  /** 0: not given. */
  readonly status: number;
  readonly reason: string;
}

export type BindOptions = Omit<ServeOptions, "model" | "sources">;

/** The port is open; /health gives the reasons for the wait. */
export interface BoundServer {
  readonly url: URL;
  /** The answer of /health until serving begins. */
  waitFor(what: string): void;
  /** Workers that clients name. */
  readonly registry: WorkerRegistry;
  /** Once. The workers are opened from now on. @throws AppError: the core cannot be loaded. */
  serve(model: ModelSide, sources: readonly WorkerSource[]): Promise<RunningSidecar>;
  /** Ends every connection. */
  stop(): Promise<void>;
}

export interface RunningSidecar {
  readonly url: URL;
  readonly sidecar: Sidecar;
  /** Each worker has been tried once. @throws AppError: no further try would open one. */
  readonly opened: Promise<void>;
  /** The wanted number of workers has been ready at the same time. */
  readonly hasStarted: boolean;
  /** Streams that are being written. */
  streams(): OpenStream[];
  /**
   * Takes nothing new; resolves when all that was in flight has ended and every client has its answer.
   * @throws AppError deadline_exceeded: clients do not take theirs.
   */
  drain(): Promise<void>;
  /** Ends everything at once. */
  stop(): Promise<void>;
}
