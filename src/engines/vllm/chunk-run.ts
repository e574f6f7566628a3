// One chunk on a server: its state over all attempts, and the tokens that the rollout does not have yet. Tokens are taken
// by their offset, so a repeat is skipped and a gap is seen. It does no I/O.

import { assert, present } from "../../core/base/assert.ts";
import type { DraftSource } from "../../core/draft/drafter.ts";
import { OutputColumns } from "../../core/request/columns.ts";
import { type FinishReason, type RequestSpec, reportsPrompt } from "../../core/request/request.ts";
import type { PromptReport } from "../../core/request/response.ts";
import type { WorkerCommand, WorkerEvent } from "../../core/rollout/worker.ts";
import type { HttpCall } from "./http.ts";
import { countOf, type EventUsage, type PieceEvent } from "./stream-event.ts";

type ChunkDone = Extract<WorkerEvent, { kind: "chunk_done" }>;

/** Our own reason for a stop after which the response continues: see `#isForeignStop`. */
const FOREIGN_STOP = "its own EOS";

/** used_up: the chunk has all its tokens. short: the server ended it earlier. */
type AttemptOutcome =
  | { readonly kind: "finished"; readonly reason: FinishReason }
  | { readonly kind: "used_up" }
  | { readonly kind: "short" };

export class ChunkRun {
  readonly spec: RequestSpec;
  readonly draft: DraftSource | null;
  /** Position from which routed experts are wanted; null: they are not. */
  readonly expertsFrom: number | null;
  readonly isUrgent: boolean;
  /** Number of the chunk, counted over all chunks of its worker. */
  readonly chunk: number;
  readonly chunkTokens: number;
  /** Attempts before this one. */
  attempt = 0;
  /** Attempts in a row before this one that brought no token. */
  failedAttempts = 0;
  /** When the server first refused the request as full, if it has made no token since; null: it has not. */
  fullSinceMs: number | null = null;
  /** Once all attempts have failed while the server serves others, a second series of attempts begins. */
  hasSecondChance = true;
  /** Time of the server's last event for this run. */
  heardMs = 0;
  /** Closes the stream, or ends the pause before the next attempt; null: neither is under way. */
  cancel: (() => void) | null = null;
  isOpen = false;
  /** HTTP call that aborts this attempt on the server; null: closing the connection does. */
  abort: HttpCall | null = null;
  /** The server's finish reason of this attempt. */
  reason: string | null = null;
  /** Prompt tokens found in the server's prefix cache before the first output token; null: not reported. */
  promptTokensCached: number | null = null;
  /** The report about the prompt, if an attempt has brought it. */
  promptReport: PromptReport | null = null;
  experts: Uint8Array | null = null;
  /** Output tokens of earlier chunks. */
  readonly #before: number;
  /** Tokens that `deliver` has not returned yet. */
  readonly #unsent: OutputColumns;
  /** Output tokens of this chunk so far. */
  made = 0;
  /** Tokens at the start of the attempt, and those that the server has reported since. */
  #base = 0;
  #counted = 0;
  #hasStopped = false;

  constructor(command: Extract<WorkerCommand, { kind: "run" }>, chunk: number) {
    const { request, output } = command;
    const { tokensMax, topLogprobs } = request.sampling;
    this.spec = request;
    this.draft = command.draft;
    this.expertsFrom = command.expertsFrom ?? null;
    this.isUrgent = command.priority === "high";
    this.chunk = chunk;
    this.chunkTokens = Math.min(command.chunkTokens, tokensMax - output.length);
    this.#before = output.length;
    this.#unsent = new OutputColumns(this.chunkTokens, topLogprobs);
  }

  /** Output tokens so far, those of earlier chunks included. */
  get offset(): number {
    return this.#before + this.made;
  }

  /** Rows of routed experts due if the attempt ends now: one per token except the last, which was never fed back. */
  get expertRows(): number {
    return this.spec.prompt.length + this.offset - 1 - (this.expertsFrom ?? 0);
  }

  get tokensLeft(): number {
    return this.chunkTokens - this.made;
  }

  /** The chunk is complete; further events are ignored. */
  get isFull(): boolean {
    return this.#hasStopped || this.made >= this.chunkTokens;
  }

  /** Whether the attempt has brought a token. */
  get hasProgressed(): boolean {
    return this.made > this.#base;
  }

  /** Tokens of prompt and output whose KV was computed before this attempt: all but the last; 0: there was no output. */
  get computedBefore(): number {
    const output = this.#before + this.#base;
    return output === 0 ? 0 : this.spec.prompt.length + output - 1;
  }

  /** Prompt + output so far. `output`: that of the response, which has all tokens that were delivered. */
  context(output: Int32Array): Int32Array {
    const { prompt } = this.spec;
    assert(output.length >= this.offset, "an attempt begins after all tokens were delivered");
    const all = new Int32Array(prompt.length + this.offset);
    all.set(prompt);
    all.set(output.subarray(0, this.offset), prompt.length);
    return all;
  }

  /** Begins the next attempt, which continues after the last token; an undivided response restarts. */
  begin(): void {
    if (!this.spec.divisible) {
      this.#unsent.rewind();
      this.made = 0;
      this.#hasStopped = false;
    }
    this.#base = this.made;
    this.#counted = 0;
    this.reason = null;
    this.experts = null;
  }

  report({ cachedTokens }: EventUsage): void {
    if (this.#before + this.#base === 0) this.promptTokensCached = cachedTokens;
  }

  /** false: tokens are missing or invalid, and the event was ignored. */
  take(piece: PieceEvent): boolean {
    const { tokens, usage } = piece;
    const count = tokens.length;
    const total = usage === null ? this.#counted + count : usage.completionTokens;
    const skipped = this.made - this.#base - (total - count);
    // A server that counts backwards has lost count of what it sends.
    const hasShrunk = total < Math.max(count, this.#counted);
    if (hasShrunk || skipped < 0 || piece.logprobs.length < count) return false;
    if ([total, ...tokens].some((number) => countOf(number) === null)) return false;
    this.#counted = total;
    for (let i = skipped; i < count && !this.isFull; i += 1) this.#append(piece, i);
    if (piece.finishReason !== null) {
      this.reason = this.#isForeignStop(piece) ? FOREIGN_STOP : piece.finishReason;
    }
    return true;
  }

  /** How the attempt ended. `contextTokens`: the server's limit of prompt + output of a request. */
  outcome(contextTokens: number): AttemptOutcome {
    const { sampling, prompt } = this.spec;
    const isStop = this.#hasStopped || this.reason === "stop" || this.reason === "repetition";
    if (isStop) return { kind: "finished", reason: "stop" };
    if (this.offset >= sampling.tokensMax) return { kind: "finished", reason: "length" };
    if (this.made >= this.chunkTokens) return { kind: "used_up" };
    if (prompt.length + this.offset >= contextTokens) return { kind: "finished", reason: "length" };
    return { kind: "short" };
  }

  /**
   * Name of a report that the server should have sent by the end of the chunk and did not; null: none is missing. If a
   * chunk does not end the response, the next chunk reports its experts.
   */
  lacking(outcome: AttemptOutcome): string | null {
    if (outcome.kind === "short") return null;
    const isFirst = this.#before === 0;
    const { logprobs, tokenIdLogprobs } = this.promptReport ?? {};
    const hasReport = (logprobs ?? tokenIdLogprobs ?? null) !== null;
    if (isFirst && reportsPrompt(this.spec.sampling) && !hasReport) return "prompt_logprobs";
    const isLast = outcome.kind === "finished" && this.expertsFrom !== null;
    return isLast && this.experts === null ? "routed_experts" : null;
  }

  /** The fields of `chunk_done` for what was reported beside tokens. */
  reports(): Pick<ChunkDone, "promptReport" | "experts"> {
    const { promptReport, experts, expertsFrom } = this;
    return {
      ...(promptReport === null ? {} : { promptReport }),
      ...(experts === null ? {} : { experts: { from: expertsFrom ?? 0, npy: experts } }),
    };
  }

  /**
   * The tokens that were not delivered yet, as views that the next token overwrites; null: none, or the response is
   * undivided and incomplete.
   */
  deliver(isOver: boolean): WorkerEvent | null {
    const unsent = this.#unsent;
    if (unsent.length === 0 || (!this.spec.divisible && !isOver)) return null;
    const { requestId } = this.spec;
    const offset = this.offset - unsent.length;
    const tokens = unsent.tokens();
    const columns = { tokens, logprobs: unsent.logprobs(), top: unsent.topLogprobs() };
    unsent.rewind();
    return { kind: "tokens", requestId, offset, ...columns };
  }

  /** Whether the server stopped at the model's own EOS, which does not end this response. */
  #isForeignStop({ finishReason, matched }: PieceEvent): boolean {
    if (finishReason !== "stop" || matched === undefined) return false;
    const { stopTokenIds, engineFields } = this.spec.sampling;
    return engineFields?.ignore_eos !== false && !stopTokenIds.includes(matched);
  }

  #append(piece: PieceEvent, i: number): void {
    const token = present(piece.tokens[i], "take has checked it");
    const logprob = present(piece.logprobs[i], "there is one for each token");
    this.#unsent.push(token, logprob, piece.alternatives[i]);
    this.made += 1;
    if (this.spec.sampling.stopTokenIds.includes(token)) this.#hasStopped = true;
  }
}
