// What passes between an engine's thread and the thread of the rollout. Token events, nearly all of the
// traffic, travel as a few transferred buffers: a message then costs a few microseconds however many they are.

import type { ErrorCode } from "../../core/base/errors.ts";
import type { WeightEpoch, WeightsId } from "../../core/base/ids.ts";
import type { WorkerCapacity, WorkerCommand } from "../../core/rollout/worker.ts";
import type { PackedEvents } from "./packed-events.ts";
import type { ModelInfo } from "./weights.ts";

/** Weights that this process has loaded: any of its threads may use the pointer. */
export interface SharedWeights {
  readonly id: WeightsId;
  readonly pointer: number;
  readonly info: ModelInfo;
}

export interface LlamaEngineSettings {
  readonly slots: number;
  readonly kvTokens: number;
  readonly contextTokens: number;
  readonly epoch: WeightEpoch;
  /** Drafts are verified whether it pays or not. */
  readonly draftsAlways: boolean;
  /** Size limit of responses of earlier weight epochs, which the engine drafts from; 0: none are kept. */
  readonly historyBytes: number;
}

export type ToEngine =
  | { kind: "open"; weights: SharedWeights; settings: LlamaEngineSettings }
  | { kind: "commands"; commands: readonly WorkerCommand[] }
  /** Each is answered by `done`. `reload` with a problem: the weights of the epoch before still serve. */
  | { kind: "reload"; weights: SharedWeights; epoch: WeightEpoch }
  | { kind: "sleep" }
  | { kind: "wake" }
  | { kind: "canary" }
  | { kind: "close" };

export type FromEngine =
  | { kind: "opened"; capacity: WorkerCapacity }
  | { kind: "events"; epoch: WeightEpoch; events: PackedEvents }
  /** `problem` null: it worked. */
  | { kind: "done"; problem: { code: ErrorCode; message: string } | null }
  /** The engine has ended and is freed. */
  | { kind: "failed"; code: ErrorCode; message: string }
  | { kind: "closed" };
