// The messages between an engine's thread and the rollout's thread. Engines are opened and commanded by the latter.

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
  /** true: drafts are verified even if that costs more than it saves. Default: false. */
  readonly draftsAlways?: boolean;
}

/** Answered by `done`. After a problem with a reload, the old weights still serve. */
export type EngineAct =
  | { kind: "reload"; weights: SharedWeights; epoch: WeightEpoch }
  | { kind: "sleep" }
  | { kind: "wake" }
  | { kind: "canary" };

export type ToEngine =
  | { kind: "open"; weights: SharedWeights; settings: LlamaEngineSettings }
  | { kind: "commands"; commands: readonly WorkerCommand[] }
  | EngineAct
  | { kind: "close" };

export type FromEngine =
  | { kind: "opened"; capacity: WorkerCapacity }
  | { kind: "events"; epoch: WeightEpoch; events: readonly WorkerEvent[] }
  /** `problem` null: the call succeeded. */
  | { kind: "done"; problem: Problem | null }
  /** The engine has ended and is freed. */
  | ({ kind: "failed" } & Problem)
  | { kind: "closed" };

export interface Problem {
  readonly code: ErrorCode;
  readonly message: string;
}

/** KV moves between the threads, and is not copied. */
export function kvBuffers(messages: readonly (WorkerCommand | WorkerEvent)[]): ArrayBuffer[] {
  return messages.flatMap((message) => ("kv" in message ? (message.kv?.bytes ?? []) : []));
}
