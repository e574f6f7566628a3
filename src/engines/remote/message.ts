// What passes over a worker link, as plain data: one message is one frame of the WebSocket. src/engines/remote/*-codec.ts
// turn them into bytes.

import type { GroupId, RequestId, WeightEpoch, WeightsId } from "../../core/base/ids.ts";
import type { DraftSource } from "../../core/draft/group-update.ts";
import type { TopLogprobs } from "../../core/request/columns.ts";
import type { FinishReason, RequestSpec } from "../../core/request/request.ts";
import type { ChunkDrafts, Refusal } from "../../core/request/response.ts";
import type {
  ControlAnswer,
  ControlRequest,
  KvBlob,
  PriorityClass,
  WorkerCapacity,
  WorkerEvent,
} from "../../core/rollout/worker.ts";
import type { SupportTable } from "./support.ts";

/** A part of KV. The first has offset 0, the last ends at `total`. */
export interface KvPart {
  readonly offset: number;
  /** Bytes of the whole. */
  readonly total: number;
  readonly bytes: Uint8Array;
}

/** KV in a message, or what is known of KV whose parts came before the message. */
export type WireKv = KvBlob | { readonly tokens: number; readonly streamedBytes: number };

/** What the host takes of the sidecar, at most. */
export interface HostLimits {
  readonly messageBytesMax: number;
  /** Of one KV that comes in parts; 0: none may. */
  readonly kvBytesMax: number;
  readonly requestsMax: number;
}

export interface Hello {
  readonly kind: "hello";
  readonly protocolVersion: number;
  readonly token: string;
  readonly messageBytesMax: number;
  /** Of one KV that comes in parts; 0: none may. */
  readonly kvBytesMax: number;
  /** Random, and the same for all sessions of one sidecar with one host. */
  readonly sidecarId: string;
  /** Display name. */
  readonly sidecarName: string;
}

export interface Welcome {
  readonly kind: "welcome";
  readonly protocolVersion: number;
  /** Random, and the same for as long as the host's process lives. */
  readonly hostRun: string;
  readonly epoch: WeightEpoch;
  readonly modelId: string;
  readonly vocabularySize: number;
  readonly workerName: string;
  readonly capacity: WorkerCapacity;
  readonly supports: SupportTable;
  readonly limits: HostLimits;
  /** null: not known. */
  readonly weights: WeightsId | null;
}

export type WireCommand =
  | {
      readonly kind: "run";
      /** Numbers the runs of a session, so that late events of an earlier run are known as such. */
      readonly run: number;
      readonly request: RequestSpec;
      readonly output: Int32Array;
      readonly chunkTokens: number;
      readonly priority: PriorityClass;
      readonly kv: WireKv | null;
      readonly draft: DraftSource | null;
    }
  | { readonly kind: "export"; readonly requestId: RequestId }
  | { readonly kind: "release"; readonly requestId: RequestId }
  | {
      readonly kind: "register_group";
      readonly groupId: GroupId;
      readonly prompt: Int32Array;
      readonly ttlMs: number;
    }
  | {
      readonly kind: "delta";
      readonly groupId: GroupId;
      readonly sampleIndex: number;
      readonly offset: number;
      readonly tokens: Int32Array;
    }
  | { readonly kind: "drop_group"; readonly groupId: GroupId }
  | { readonly kind: "advance"; readonly epoch: WeightEpoch };

export type SidecarMessage =
  | Hello
  | { readonly kind: "heartbeat" }
  /** The sidecar needs the worker no more. */
  | { readonly kind: "bye" }
  | { readonly kind: "kv_part"; readonly part: KvPart }
  | { readonly kind: "commands"; readonly commands: readonly WireCommand[] }
  | { readonly kind: "control"; readonly controlId: number; readonly request: ControlRequest }
  | { readonly kind: "canary"; readonly controlId: number; readonly adapter: string | null };

/** An event of the worker port; what belongs to a run names it by its number. */
export type WireEvent =
  | {
      readonly kind: "tokens";
      readonly run: number;
      readonly offset: number;
      readonly tokens: Int32Array;
      readonly logprobs: Float32Array;
      readonly top: TopLogprobs | null;
    }
  | {
      readonly kind: "chunk_done";
      readonly run: number;
      readonly finish: FinishReason | null;
      readonly refusal?: Refusal;
      readonly drafts?: ChunkDrafts;
    }
  | { readonly kind: "exported"; readonly requestId: RequestId; readonly kv: WireKv | null }
  | Exclude<WorkerEvent, { kind: "tokens" | "chunk_done" | "exported" }>;

export type HostMessage =
  | Welcome
  | { readonly kind: "heartbeat" }
  | { readonly kind: "kv_part"; readonly part: KvPart }
  | {
      readonly kind: "events";
      readonly epoch: WeightEpoch;
      readonly events: readonly WireEvent[];
    }
  | {
      readonly kind: "control_answer";
      readonly controlId: number;
      readonly answer: ControlAnswer;
      /** Of the worker when it answered; null: not known. */
      readonly weights: WeightsId | null;
    };
