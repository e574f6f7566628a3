// One request in the engine: its tokens, how many of them have KV, and where the KV is. It is plain state
// with an invariant; the engine moves it between waiting, running and parked.
//
//   0 <= computed < length <= tokens.length
//   [ prompt ............ | output of earlier chunks | output of this chunk ]
//   0                     promptLength               chunkStart    length   chunkEnd
//
// The last token of a decoding sequence is always pending: it is drawn, and its KV is not computed yet.

import type { DraftSource } from "../../core/draft/drafter.ts";
import type { FinishReason, RequestSpec } from "../../core/request/request.ts";
import type { ChunkDrafts, Refusal } from "../../core/request/response.ts";
import type {
  KvBlob,
  PriorityClass,
  WorkerCommand,
  WorkerEvent,
} from "../../core/rollout/worker.ts";
import { ShapingState } from "./shaping.ts";

export type RunCommand = Extract<WorkerCommand, { kind: "run" }>;

export class Sequence {
  /** The request. It changes if the parked KV of a session's turn is adopted by the next turn. */
  spec: RequestSpec;
  /** Source of the drafts; null: the sequence gets none. */
  readonly draft: DraftSource | null;
  readonly tokens: Int32Array;
  readonly promptLength: number;
  readonly chunkStart: number;
  /** Length at which the chunk, or the whole response, ends. */
  readonly chunkEnd: number;
  /** Logprobs of the tokens drawn in this chunk. */
  readonly logprobs: Float32Array;
  /** Alternatives of the tokens drawn in this chunk, `sampling.topLogprobs` each. */
  readonly topTokens: Int32Array;
  readonly topLogprobs: Float32Array;
  /** null: logits are used as they are. */
  readonly shaping: ShapingState | null;
  priority: PriorityClass;
  length: number;
  /** Leading tokens whose KV is resident here, in `stream` or in `swapped`. */
  computed = 0;
  /** Leading tokens whose KV was ever computed, here or elsewhere: computing it again counts as recomputed. */
  computedBefore: number;
  /** Stream of the context that holds the KV; -1: none. */
  stream = -1;
  /** KV moved out of the context to free its stream, with room for a blob's header before it. */
  swapped: ArrayBuffer | null = null;
  /** KV that came with the request, until it is loaded. */
  kv: KvBlob | null;
  /** Prompt tokens that had KV here when the request first ran; null: it has not run, or began elsewhere. */
  promptCached: number | null = null;
  /** Length up to which the tokens have been sent. */
  sent: number;
  /** Length up to which the draft replica has the tokens. */
  known: number;
  /** In the current step: its rows of the batch, and its draft among all drafts. */
  firstRow = 0;
  rowCount = 0;
  draftFrom = 0;
  draftLength = 0;
  /** Draft tokens of this chunk. */
  draftedTokens = 0;
  acceptedTokens = 0;
  /** Verifications, as in ChunkDrafts. */
  readonly verifications: number[] = [];
  finish: FinishReason | null = null;
  /** Why the sequence cannot continue; then its `finish` is "abort". */
  refusal: Refusal | null = null;

  constructor(command: RunCommand) {
    const { request, output, chunkTokens } = command;
    this.spec = request;
    this.draft = command.draft;
    this.promptLength = request.prompt.length;
    this.length = this.promptLength + output.length;
    this.chunkStart = this.length;
    const tokensLeft = Math.min(chunkTokens, request.sampling.tokensMax - output.length);
    this.chunkEnd = this.length + Math.max(0, tokensLeft);
    this.tokens = new Int32Array(this.chunkEnd);
    this.tokens.set(request.prompt);
    this.tokens.set(output, this.promptLength);
    const chunkLength = this.chunkEnd - this.chunkStart;
    this.logprobs = new Float32Array(chunkLength);
    const { shaping, topLogprobs } = request.sampling;
    this.topTokens = new Int32Array(chunkLength * topLogprobs);
    this.topLogprobs = new Float32Array(chunkLength * topLogprobs);
    this.shaping = shaping && new ShapingState(request, shaping);
    for (const token of output) this.shaping?.note(token);
    this.priority = command.priority;
    this.kv = command.kv;
    // A continued response was computed somewhere up to its pending token.
    this.computedBefore = output.length > 0 ? this.length - 1 : 0;
    this.sent = this.length;
    this.known = this.length;
  }

  get outputLength(): number {
    return this.length - this.promptLength;
  }

  /** Index of the first token that belongs to the draft sequence: the lead, then the output. */
  get draftStart(): number {
    return this.promptLength - (this.draft?.turn?.leadTokens ?? 0);
  }

  /** Tokens that must be computed before the next one can be drawn. */
  get pending(): number {
    return this.length - this.computed;
  }

  append(token: number, logprob: number): void {
    this.logprobs[this.length - this.chunkStart] = logprob;
    this.tokens[this.length] = token;
    this.length += 1;
    this.shaping?.note(token);
  }

  /** Records that a draft of `drafted` tokens was verified after `offset` output tokens. */
  verified(offset: number, drafted: number, accepted: number): void {
    this.acceptedTokens += accepted;
    this.verifications.push(offset, drafted, accepted);
  }

  /** Takes the unsent tokens: they count as sent from now on. */
  takeTokens(): Extract<WorkerEvent, { kind: "tokens" }> {
    const { sent, length, chunkStart, promptLength, topTokens, topLogprobs } = this;
    const count = this.spec.sampling.topLogprobs;
    const from = (sent - chunkStart) * count;
    const to = (length - chunkStart) * count;
    const top = { count, tokens: topTokens.slice(from, to), logprobs: topLogprobs.slice(from, to) };
    this.sent = length;
    return {
      kind: "tokens",
      requestId: this.spec.requestId,
      offset: sent - promptLength,
      tokens: this.tokens.slice(sent, length),
      logprobs: this.logprobs.slice(sent - chunkStart, length - chunkStart),
      top: count === 0 ? null : top,
    };
  }

  /** Counters of the chunk, for the report at its end. */
  counts(): { drafts: ChunkDrafts; promptTokensCached?: number } {
    const { draftedTokens, acceptedTokens, promptCached } = this;
    const verifications = Int32Array.from(this.verifications);
    const drafts = { draftedTokens, acceptedTokens, verifications };
    return promptCached === null ? { drafts } : { drafts, promptTokensCached: promptCached };
  }

  /** Records that the KV was dropped: computing it again counts as recomputed. */
  forgetKv(): void {
    this.computedBefore = Math.max(this.computedBefore, this.computed);
    this.computed = 0;
    this.swapped = null;
  }

  /** Whether all resident tokens of the other sequence are this one's, too, before the last. */
  continues({ computed, tokens }: Sequence): boolean {
    if (computed >= this.length) return false;
    for (let i = 0; i < computed; i += 1) if (this.tokens[i] !== tokens[i]) return false;
    return true;
  }
}
