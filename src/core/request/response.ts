// One response as it grows: tokens, their logprobs, and which chunk ran where. It accepts tokens by
// offset only, so that a lost, repeated or reordered token is noticed.

import { assert } from "../base/assert.ts";
import type { ErrorCode } from "../base/errors.ts";
import type { WeightEpoch, WeightsId, WorkerId } from "../base/ids.ts";
import { OutputColumns, type TopLogprobs } from "./columns.ts";
import type { ExpertRows } from "./expert-rows.ts";
import type { FinishReason } from "./request.ts";

/** One dispatch of a divided request: `tokens` output tokens from `offset` on, made by `workerId`. */
export interface Chunk {
  readonly workerId: WorkerId;
  readonly epoch: WeightEpoch;
  /** Precision and digest of the weights that drew its tokens; null: its worker does not report it. */
  readonly weights: WeightsId | null;
  readonly offset: number;
  tokens: number;
  /** Absent: an earlier process ran the chunk. */
  readonly run?: ChunkStats | undefined;
}

/** used_up: all its tokens. ended_early: stopped to free its KV. lost: its worker, or its weights. Else the response ended. */
export type ChunkEnd = "used_up" | "ended_early" | "lost" | FinishReason;

/** How a chunk ran. Times are those of the rollout's clock. */
export interface ChunkStats {
  readonly startMs: number;
  /** null: no token has come. */
  firstTokenMs: number | null;
  /** null: the chunk runs. */
  endMs: number | null;
  end: ChunkEnd | null;
  /** Maximum of output tokens of the chunk. */
  readonly tokensMax: number;
  /** Tokens of KV that were loaded from the KV pool for it. */
  readonly kvTokens: number;
  /** null: the worker counts drafts only for all requests together. */
  drafts: ChunkDrafts | null;
  /** How many times the engine preempted it, so that its KV was computed again. */
  preemptions: number;
}

export interface ChunkDrafts {
  readonly draftedTokens: number;
  readonly acceptedTokens: number;
  /**
   * Three numbers for each verification, in order: the number of output tokens before it, the draft tokens that it
   * verified, and how many of them were accepted. Absent: not reported.
   */
  readonly verifications?: Int32Array;
}

/** Numbers of one verification in ChunkDrafts. */
export const VERIFICATION_WORDS = 3;

export interface Refusal {
  /** As in HTTP. 4xx: the request is to blame; else the engine is. */
  readonly status: number;
  readonly message: string;
  /** The condition that ended the request, if no engine is to blame; absent: `worker_failed`. */
  readonly code?: ErrorCode;
}

/** An engine's report about a prompt, as unparsed JSON; null: not requested. */
export interface PromptReport {
  readonly logprobs: Uint8Array | null;
  readonly tokenIdLogprobs: Uint8Array | null;
}

/** Output of a response from an earlier process, from which this one continues. */
export interface SavedOutput {
  readonly tokens: Int32Array;
  readonly logprobs: Float32Array;
  readonly top: TopLogprobs | null;
  readonly chunks: readonly Chunk[];
  /** null: the response is not finished. */
  readonly finish: FinishReason | null;
  readonly refusal: Refusal | null;
}

export type AppendResult =
  | { kind: "ok"; fresh: number; repeated: number }
  | { kind: "gap"; missing: number };

export class RolloutResponse extends OutputColumns {
  readonly tokensMax: number;
  readonly chunks: Chunk[] = [];
  #lastChunk: Chunk | null = null;
  finish: FinishReason | null = null;
  /** Why the response was given up, if an engine refused the request. */
  refusal: Refusal | null = null;
  /** When, by the rollout's clock, it joined, was first dispatched, got its first and last token, and ended; null: not yet. */
  joinedMs: number | null = null;
  startedMs: number | null = null;
  firstTokenMs: number | null = null;
  lastTokenMs: number | null = null;
  finishedMs: number | null = null;
  restarts = 0;
  /** Prompt tokens in an engine's cache when the response began; null: not reported. */
  promptTokensCached: number | null = null;
  /** null: no report was requested, or the first chunk still runs. */
  promptReport: PromptReport | null = null;
  /** null: experts are not wanted, or no chunk has reported any yet. */
  experts: ExpertRows | null = null;

  /** `lead`: see RequestSpec.leadTokens. */
  constructor(tokensMax: number, topLogprobs = 0, lead?: Int32Array) {
    assert(tokensMax >= 1, "a response holds at least one token");
    super(tokensMax, topLogprobs, lead);
    this.tokensMax = tokensMax;
  }

  /** Whether it only counts tokens and keeps none, as in the simulator, whose tokens are arbitrary. */
  get isCounted(): boolean {
    return false;
  }

  override get bytes(): number {
    const { logprobs, tokenIdLogprobs } = this.promptReport ?? {};
    const reported = (logprobs?.byteLength ?? 0) + (tokenIdLogprobs?.byteLength ?? 0);
    let drafts = 0;
    for (const { run } of this.chunks) drafts += run?.drafts?.verifications?.byteLength ?? 0;
    return super.bytes + reported + drafts + (this.experts?.bytes ?? 0);
  }

  openChunk(
    workerId: WorkerId,
    epoch: WeightEpoch,
    weights: WeightsId | null = null,
    began?: Pick<ChunkStats, "startMs" | "tokensMax" | "kvTokens">,
  ): void {
    const fresh = { firstTokenMs: null, endMs: null, end: null, drafts: null, preemptions: 0 };
    const run = began && { ...began, ...fresh };
    const chunk = { workerId, epoch, weights, offset: this.length, tokens: 0, run };
    this.chunks.push(chunk);
    this.#lastChunk = chunk;
  }

  /** The chunk that runs or ran last; null: none has run. */
  get lastChunk(): Chunk | null {
    return this.#lastChunk;
  }

  /** Records the end of the running chunk; `end` null: the response goes on. Does nothing if no chunk runs. */
  closeChunk(endMs: number, end: FinishReason | "lost" | null): void {
    const chunk = this.#lastChunk;
    if (chunk?.run === undefined || chunk.run.endMs !== null) return;
    const { run, tokens } = chunk;
    run.endMs = endMs;
    run.end = end ?? (tokens < run.tokensMax ? "ended_early" : "used_up");
  }

  /**
   * Appends `tokens`, whose first is output token number `offset`; skips those that it has already.
   * `top`: the alternatives of the same tokens, as many each as given at construction.
   */
  append(
    offset: number,
    tokens: Int32Array,
    logprobs: Float32Array,
    top: TopLogprobs | null = null,
  ): AppendResult {
    assert(tokens.length === logprobs.length, "every token has a logprob");
    const { length } = this;
    if (offset > length) return { kind: "gap", missing: offset - length };
    const repeated = Math.min(length - offset, tokens.length);
    const fresh = tokens.length - repeated;
    assert(length + fresh <= this.tokensMax, "a response never exceeds its tokensMax");
    this.appendFrom(tokens, logprobs, top, repeated);
    const chunk = this.#lastChunk;
    if (chunk !== null) chunk.tokens += fresh;
    return { kind: "ok", fresh, repeated };
  }

  /** Restores saved output to an empty response. */
  restore({ chunks, tokens, logprobs, top }: SavedOutput): void {
    this.append(0, tokens, logprobs, top);
    for (const chunk of chunks) this.chunks.push({ ...chunk });
    this.#lastChunk = this.chunks.at(-1) ?? null;
  }

  /** Discards all tokens: the response restarts. */
  restart(): void {
    this.restarts += 1;
    this.chunks.length = 0;
    this.#lastChunk = null;
    this.promptReport = null;
    this.experts = null;
    this.clear();
  }
}
