// The messages between an engine's thread and the rollout's thread.

import type { ErrorCode } from "../../core/base/errors.ts";
import type { WeightEpoch } from "../../core/base/ids.ts";
import type { WorkerCapacity, WorkerCommand, WorkerEvent } from "../../core/rollout/worker.ts";
import type { SharedWeights } from "./weights.ts";

export interface LlamaEngineSettings {
  readonly slots: number;
  readonly kvTokens: number;
  readonly contextTokens: number;
  /** Weight epoch of the model as it is now. */
  readonly epoch: WeightEpoch;
  /** true: drafts are verified even if that costs more than it saves. */
  readonly draftsAlways: boolean;
}

export type ToEngine =
  | { kind: "open"; weights: SharedWeights; settings: LlamaEngineSettings }
  | { kind: "commands"; commands: readonly WorkerCommand[] }
  /** Answered by `done`, as are sleep, wake and canary. After a problem, the old weights still serve. */
  | { kind: "reload"; weights: SharedWeights; epoch: WeightEpoch }
  | { kind: "sleep" }
  | { kind: "wake" }
  | { kind: "canary" }
  | { kind: "close" };

export type FromEngine =
  | { kind: "opened"; capacity: WorkerCapacity }
  | { kind: "events"; epoch: WeightEpoch; events: readonly WorkerEvent[] }
  /** `problem` null: the call succeeded. */
  | { kind: "done"; problem: { code: ErrorCode; message: string } | null }
  /** The engine has ended and is freed. */
  | { kind: "failed"; code: ErrorCode; message: string }
  | { kind: "closed" };
