// The one port between the rollout and an engine. Every kind of worker implements it: the embedded
// engine, a vLLM or SGLang server, a simulated one.
//
// Life of a request on a worker: `run` makes it waiting, then running; the worker streams `tokens`;
// at the end of the chunk it says `chunk_done` and the request is *parked*: its KV stays until the
// next `run` (which then needs no prefill), an `export`, or a `release`. A worker short of KV drops
// parked KV first (`evicted`), oldest first, and only then preempts the youngest running request, as vLLM does
// (the request goes back to the worker's own waiting queue and is recomputed).

import type { GroupId, RequestId, WeightEpoch, WeightsId, WorkerId } from "../base/ids.ts";
import type { DraftSource, GroupUpdate } from "../draft/drafter.ts";
import type { TopLogprobs } from "../request/columns.ts";
import type { FinishReason, RequestSpec, SamplingParams } from "../request/request.ts";
import type { ChunkDrafts, PromptReport, Refusal } from "../request/response.ts";
import type { ControlAnswer, EngineOperation } from "./operation.ts";

/** Bounds of a worker; constant over its life. */
export interface WorkerCapacity {
  /** Requests that run at the same time, at most; 2 or more. An engine with one at a time lets two take turns. */
  readonly slots: number;
  /** Requests beyond its slots that wait in its own queue, and take a free slot in the engine's next step. Default: 0. */
  readonly ahead?: number;
  /** KV budget in tokens, over all requests resident on the worker (running and parked). */
  readonly kvTokens: number;
  /** Tokens of one block of KV: a request takes whole blocks. Default: 1. */
  readonly kvBlockTokens?: number;
  /** Prompt + output of one request, at most. */
  readonly contextTokens: number;
  /** Bytes of KV a token takes when it is exported. */
  readonly kvBytesPerToken: number;
  /** Other workers can load its KV, and it theirs. Default: where KV can be exported. */
  readonly sharesKv?: boolean;
  /** The part of a step that does not depend on its rows, as the number of rows that take as long. Default: learnt. */
  readonly baseRows?: number;
  /** false: it makes no drafts, so that draft groups and their tokens need not be sent. Default: true. */
  readonly drafts?: boolean;
  /** Requests of one group hold the KV of their prompt once. Default: false. */
  readonly sharesPrompts?: boolean;
}

/** Exported KV of one request: the first `tokens` tokens of prompt + output. */
export interface KvBlob {
  readonly tokens: number;
  readonly bytes: ArrayBuffer;
}

/** high: probes and the tail; they draft deeper (paper section 3.4.1). */
export type PriorityClass = "high" | "low";

export type WorkerCommand =
  | GroupUpdate
  /**
   * Generate at most `chunkTokens` more tokens. `output` holds all tokens generated so far; tokens whose KV is neither
   * resident nor in `kv` are prefilled. A `kv` that cannot be loaded is ignored (recompute).
   */
  | {
      kind: "run";
      request: RequestSpec;
      output: Int32Array;
      chunkTokens: number;
      priority: PriorityClass;
      kv: KvBlob | null;
      /** The draft group and the sequence in it that this request is; null: no drafts for it. */
      draft: DraftSource | null;
      /** Report the experts of tokens from this position of prompt + output on. Absent: of none. */
      expertsFrom?: number;
    }
  /**
   * Hand out the request's KV, and free it here. Answered by `exported`. A chunk that runs ends before that, with the
   * tokens that it has (`chunk_done`); one that cannot be divided runs on, and `exported` hands out nothing.
   */
  | { kind: "export"; requestId: RequestId }
  /** If a chunk that may be divided runs, it ends with the tokens that it has (`chunk_done`), and its KV is parked. */
  | { kind: "park"; requestId: RequestId }
  /**
   * The KV that is parked for `from`, up to `tokens` of it, belongs to this request from now on, which has not run yet:
   * it is the next turn. Only to workers with `keepsKv`; one that knows that it has none answers `evicted`.
   */
  | { kind: "adopt"; requestId: RequestId; from: RequestId; tokens: number }
  /** Free whatever is held for the request, running or parked. No answer. */
  | { kind: "release"; requestId: RequestId }
  /**
   * The weights have become those of `epoch` by an operation. Requests, KV and drafts of the old epoch are dropped
   * without notice; events sent afterwards carry the new one, beginning with `advanced`.
   */
  | { kind: "advance"; epoch: WeightEpoch };

export type WorkerEvent =
  /** `offset` counts output tokens before these. `logprobs[i]` belongs to `tokens[i]`. */
  | {
      kind: "tokens";
      requestId: RequestId;
      offset: number;
      tokens: Int32Array;
      logprobs: Float32Array;
      /** null: none were asked for. */
      top: TopLogprobs | null;
    }
  /**
   * `finish` null: the chunk is used up, the response goes on; "stop": its last token is one of `stopTokenIds`, which
   * hold the model's end of text. If not null its KV is freed, or parked if the spec says so and it was not given up.
   * `refusal`: why the engine would not run it, or could not go on with it, whatever was tried (`status` 4xx: the request
   * is wrong); `finish` is "abort" then. An engine that answers no more ends with `failed`.
   * `promptTokensCached`: tokens of the prompt that the engine found in a cache of its own at the request's first
   * chunk; absent: it did not say. `promptReport`: of the first chunk, where it was asked for. `experts`: rows of this
   * chunk as an .npy file, from `expertsFrom` on; a chunk that was ended early has none. `drafts`: of this chunk; absent:
   * the engine does not count them by request.
   */
  | {
      kind: "chunk_done";
      requestId: RequestId;
      finish: FinishReason | null;
      refusal?: Refusal;
      promptTokensCached?: number;
      promptReport?: PromptReport;
      experts?: { readonly from: number; readonly npy: Uint8Array };
      drafts?: ChunkDrafts;
    }
  /** `kv` null: nothing was held any more. */
  | { kind: "exported"; requestId: RequestId; kv: KvBlob | null }
  /** Parked KV was dropped to make room. */
  | { kind: "evicted"; requestId: RequestId }
  /** The engine took a running request's KV; it will recompute `tokens` tokens by itself. */
  | { kind: "preempted"; requestId: RequestId; tokens: number }
  | { kind: "stats"; stats: WorkerStats }
  | { kind: "advanced"; epoch: WeightEpoch }
  /** A registered group's replica missed tokens: the log is wanted again from `offset`. */
  | { kind: "gap"; groupId: GroupId; sampleIndex: number; offset: number }
  /** The worker is gone; nothing else will follow. */
  | { kind: "failed"; message: string };

/** Counters are cumulative since the worker started, gauges as of the last step; 0 where an engine does not know it. */
export interface WorkerStats {
  /** Gauges. */
  readonly running: number;
  readonly waiting: number;
  readonly kvTokensUsed: number;
  /** Counters. */
  readonly steps: number;
  /** Time inside engine steps, ms; of embedded engines, CPU time of their threads. */
  readonly busyMs: number;
  /** Time inside the drafter, ms (part of busyMs). */
  readonly draftMs: number;
  readonly outputTokens: number;
  /** Tokens that passed through prefill, recomputed ones included. */
  readonly prefillTokens: number;
  /** Prefilled tokens that had been computed before: after a preemption, an eviction or a move without KV. */
  readonly recomputedTokens: number;
  readonly preemptions: number;
  /** Draft tokens verified, and those among them that the target model drew as well. */
  readonly draftedTokens: number;
  readonly acceptedTokens: number;
  /** Verifications of at least one draft token: mean acceptance length = 1 + accepted / drafts. */
  readonly drafts: number;
  /** Time of the steps that accepted tokens made needless, less verification and drafting, ms. Absent: not known. */
  readonly draftSavedMs?: number;
  /** How far steps took of late from what the draft planner expected, as a part of that, 0 to 1. Absent: not known. */
  readonly stepError?: number;
  /** KV blobs loaded, and refused (wrong, corrupt or no room): the latter were recomputed. */
  readonly kvLoads: number;
  readonly kvLoadFailures: number;
  /** KV moves of engines that move KV by themselves, not as blobs. */
  readonly kvMoves?: KvMoveStats;
}

/** Requests that came to one engine from another, and the pool that its KV connector asks. Cumulative counters. */
export interface KvMoveStats {
  readonly connector: string;
  /** Requests that came here and found KV of their output, and the tokens of it. */
  readonly moves: number;
  readonly movedTokens: number;
  /** Requests that came here and whose KV was not found; the tokens that were computed again. */
  readonly recomputedMoves: number;
  readonly recomputedTokens: number;
  /** Tokens that the engine says it has loaded through the connector, for whatever request. */
  readonly hitTokens: number;
  /** Blocks that the pool could not look up, load or save, as the engine counts them. */
  readonly failedBlocks: number;
  /** Time of all lookups, loads and saves. */
  readonly poolSeconds: number;
}

/** Events of one engine step or more, in order, all of one weight epoch. Columns of `tokens` are valid during the call. */
export type WorkerListener = (epoch: WeightEpoch, events: readonly WorkerEvent[]) => void;

/** All output of a request so far, whose events are in it once the listener has returned; null: it runs here no more. */
export type OutputReader = (requestId: RequestId) => Int32Array | null;

/**
 * divided: a response may stop after any token and go on, here or elsewhere, as if nothing had happened.
 * whole: only in one piece. refused: this engine cannot honour `field`, in the client's words (`min_tokens`).
 */
export type SamplingSupport =
  | { readonly kind: "divided" }
  | { readonly kind: "whole" }
  /** `reason` goes on after the field's name: "is not supported by this engine". */
  | { readonly kind: "refused"; readonly field: string; readonly reason: string };

/** Engines are updated by others too, so that what they report is as of a time. */
export interface ReportedVersion {
  readonly name: string;
  /** Time of the reading, by the worker's clock. */
  readonly readMs: number;
}

export interface EngineWorker {
  readonly workerId: WorkerId;
  /** Name for people: a URL, or which embedded engine it is. */
  readonly name: string;
  readonly capacity: WorkerCapacity;
  /** true: the worker keeps the KV of a finished request whose spec says so, until it is adopted, exported or released. */
  readonly keepsKv?: boolean;
  /** Name of the worker's weights, as of its last control answer; null or absent: it cannot say. */
  readonly weights?: WeightsId | null;
  /** The trainer's name for its weights, as the engine last reported it; null or absent: it reports none. */
  readonly weightVersion?: ReportedVersion | null;
  /** true: the worker reports the experts of every request. Default: false. */
  readonly reportsExperts?: boolean;
  /** true: trainers abort requests at the engine itself, which ends a chunk and not the response. Default: false. */
  readonly takesAborts?: boolean;
  /** Never blocks and never throws; a worker that has failed ignores commands. */
  send(commands: readonly WorkerCommand[]): void;
  /** Exactly one listener; set before the first command, never called within `send`. A failed worker says so again. */
  listen(listener: WorkerListener, outputOf: OutputReader): void;
  supports(sampling: SamplingParams): SamplingSupport;
  /** Never rejects. `nextEpoch` begins if the weights change; the caller sees to it that nothing runs then. */
  perform(operation: EngineOperation, nextEpoch: WeightEpoch): Promise<ControlAnswer>;
  /** Stops the engine and frees it. Safe to call twice. */
  close(): Promise<void>;
}

export interface OpenOptions {
  readonly workerId: WorkerId;
  readonly epoch: WeightEpoch;
  /** Called with the reason while the worker cannot be reached but its requests may still run there; null: reachable. */
  readonly reach: (lost: string | null) => void;
}
