// One step over the running requests: lays out their rows, computes them, draws their tokens. It decides how
// the rows of a step are divided among decoding, drafts and prefill; the engine decides which requests run.

import { AssertionError } from "../../core/base/assert.ts";
import type { Clock } from "../../core/base/clock.ts";
import { uniformAt } from "../../core/base/hash.ts";
import type { FinishReason } from "../../core/request/request.ts";
import type { Refusal } from "../../core/request/response.ts";
import { GRAPH_ROWS, type LlamaContext } from "./context.ts";
import type { Residency } from "./residency.ts";
import { Sampler } from "./sampler.ts";
import type { Sequence } from "./sequence.ts";
import type { StepSpeculation } from "./speculation.ts";
import type { LearnedStepCost } from "./step-cost.ts";

/** Maximum of rows of one llama_decode. Drafts get those that slots and prefill leave. */
export const BATCH_ROWS = 512;
/** Default of `prefillRows`: two graphs of prefill in a step, so that a new request does not delay decoding for longer. */
export const PREFILL_ROWS = 96;

/** HTTP statuses of refusals: the request asks for what cannot be done; the engine fails at what it should be able to do. */
const BAD_REQUEST = 400;
const BAD_GATEWAY = 502;

export interface StepperOptions {
  readonly vocabularySize: number;
  readonly speculation: StepSpeculation;
  readonly cpuClock: Clock;
  /** Used by the draft planner, and updated with step times. */
  readonly cost: LearnedStepCost;
  readonly slots: number;
  /** Tokens prefilled in one step, at most. */
  readonly prefillRows: number;
  /** Cumulative counters. */
  readonly counts: { outputTokens: number; prefillTokens: number; recomputedTokens: number };
}

export class Stepper {
  readonly #options: StepperOptions;
  readonly #sampler: Sampler;
  readonly #decoding: Sequence[] = [];
  /** Sequences with rows in the step, in ascending order of their streams. */
  readonly #parts: Sequence[] = [];
  /** KV of the running sequences, and its context. Another one after a change of weights or a sleep. */
  residency: Residency;

  constructor(options: StepperOptions, residency: Residency) {
    this.#options = options;
    this.residency = residency;
    this.#sampler = new Sampler(options.vocabularySize);
  }

  /**
   * Decides each request's rows: its pending token and its draft, or a piece of prefill. Drafts get at most `room` KV
   * tokens. Returns the KV tokens that the step adds.
   */
  plan(running: readonly Sequence[], room: number): number {
    this.#decoding.length = 0;
    for (const sequence of running) {
      sequence.draftLength = 0;
      if (sequence.pending === 1) this.#decoding.push(sequence);
    }
    const { speculation, cost, slots, prefillRows } = this.#options;
    // More rows than a graph takes would read the weights once more.
    const graphRows = GRAPH_ROWS - this.#decoding.length;
    const draftRows = Math.min(BATCH_ROWS - slots - prefillRows, graphRows, room);
    speculation.propose(this.#decoding, draftRows, cost);
    let prefillLeft = prefillRows;
    let tokens = 0;
    for (const sequence of running) {
      if (sequence.pending === 1) {
        sequence.rowCount = 1 + speculation.length;
      } else {
        sequence.rowCount = Math.min(sequence.pending, prefillLeft);
        prefillLeft -= sequence.rowCount;
      }
      tokens += sequence.rowCount;
    }
    return tokens;
  }

  /** Computes the planned rows and draws tokens; sets `finish` of responses that end. */
  run(running: readonly Sequence[]): void {
    this.#parts.length = 0;
    for (const sequence of running) if (sequence.rowCount > 0) this.#parts.push(sequence);
    // llama.cpp starts a new graph wherever the next stream's number is not one more than the last (16 rows in falling
    // order take 3.6 times as long).
    this.#parts.sort((a, b) => a.stream - b.stream);
    for (const sequence of this.#parts) {
      if (sequence.pending > 1) this.#addPrefillRows(sequence);
      else this.#addDecodeRows(sequence);
    }
    const { speculation, cpuClock, cost } = this.#options;
    const { rows } = this.#context;
    const prefills = this.#parts.some(({ pending }) => pending > 1);
    const startMs = cpuClock.nowMs();
    this.#context.decode();
    const acceptedBefore = speculation.acceptedTokens;
    for (const sequence of running) if (sequence.rowCount > 0) this.#readOrRefuse(sequence);
    // With what verification takes beside the rows.
    if (!prefills) cost.observe(this.#parts.length, rows, cpuClock.nowMs() - startMs);
    this.#countSaved(acceptedBefore);
  }

  get #context(): LlamaContext {
    return this.residency.context;
  }

  /** Counts the time that drafts saved: each accepted token would have taken its share of a plain step. */
  #countSaved(acceptedBefore: number): void {
    const { speculation, cost } = this.#options;
    const batch = this.#decoding.length;
    if (batch === 0 || speculation.length === 0) return;
    const rows = batch * (1 + speculation.length);
    const plainMs = cost.ms(batch, batch);
    const accepted = speculation.acceptedTokens - acceptedBefore;
    speculation.savedMs += (accepted / batch) * plainMs - (cost.ms(batch, rows) - plainMs);
  }

  /**
   * Reads the results of one request in a step. It reads only the request's rows, and changes only its state and its
   * stream, so a fault ends this request and no other.
   */
  #readOrRefuse(sequence: Sequence): void {
    try {
      this.#read(sequence);
    } catch (error) {
      // A broken invariant is a bug of what all requests share.
      if (error instanceof AssertionError || !(error instanceof Error)) throw error;
      const message = `the engine failed at this request: ${error.message}`;
      sequence.refusal = { status: BAD_GATEWAY, message };
      sequence.finish = "abort";
    }
  }

  /** Adds rows for the pending token and its draft, and padding rows up to the step's draft length. */
  #addDecodeRows(sequence: Sequence): void {
    const { speculation, vocabularySize } = this.#options;
    const { computed, stream } = sequence;
    let token = sequence.tokens[computed] as number;
    sequence.firstRow = this.#context.add(token, computed, stream, true);
    for (let i = 0; i + 1 < sequence.rowCount; i += 1) {
      const isDraft = i < sequence.draftLength;
      // A token out of the vocabulary would fail the step, and with it every request.
      if (isDraft) token = Math.min(speculation.token(sequence, i), vocabularySize - 1);
      this.#context.add(token, computed + 1 + i, stream, isDraft);
    }
  }

  #addPrefillRows(sequence: Sequence): void {
    const from = sequence.computed;
    const to = from + sequence.rowCount;
    for (let position = from; position < to; position += 1) {
      const token = sequence.tokens[position] as number;
      const last = position + 1 === sequence.length;
      sequence.firstRow = this.#context.add(token, position, sequence.stream, last);
    }
    this.#options.counts.prefillTokens += to - from;
    const again = Math.min(to, sequence.computedBefore) - from;
    this.#options.counts.recomputedTokens += Math.max(0, again);
  }

  #read(sequence: Sequence): void {
    const isPrefill = sequence.pending > 1;
    if (isPrefill) {
      sequence.computed += sequence.rowCount;
      if (sequence.pending > 0) return;
    }
    const from = sequence.length;
    const verifies = !isPrefill && sequence.rowCount > 1;
    sequence.finish = verifies ? this.#verify(sequence) : this.#drawOne(sequence);
    this.#options.counts.outputTokens += sequence.length - from;
  }

  #drawOne(sequence: Sequence): FinishReason | null {
    sequence.computed = sequence.length;
    return this.#draw(sequence, sequence.firstRow);
  }

  /** Draws the next token from a row of logits. Returns the finish reason if the response ends, else null. */
  #draw(sequence: Sequence, row: number): FinishReason | null {
    const { sampling } = sequence.spec;
    const sampler = this.#sampler;
    this.#context.copyLogits(row, sampler.rowPointer);
    if (sampling.shaping !== null) {
      sequence.shaping?.apply(sampler.row, sequence.outputLength);
      // As in vLLM, a greedy request is not filtered: it takes the likeliest token anyway.
      if (sampling.temperature > 0) sampler.filter(sampling.temperature, sampling.shaping);
    }
    const u = sampling.temperature > 0 ? uniformAt(sequence.spec.draw, sequence.outputLength) : 0;
    const token = sampler.draw(sampling.temperature, u);
    if (token < 0) {
      sequence.refusal = this.#undrawable(row);
      return "abort";
    }
    if (sampling.topLogprobs > 0) {
      const count = sampling.topLogprobs;
      const at = (sequence.length - sequence.chunkStart) * count;
      const { topTokens: tokens, topLogprobs: logprobs } = sequence;
      sampler.writeTop(sampling.temperature, count, { tokens, logprobs, at });
    }
    sequence.append(token, sampler.logprob);
    if (sampling.stopTokenIds.includes(token)) return "stop";
    return sequence.outputLength >= sampling.tokensMax ? "length" : null;
  }

  /** Why no token can be drawn: the unshaped logits show whether the model or the request is to blame. */
  #undrawable(row: number): Refusal {
    const sampler = this.#sampler;
    this.#context.copyLogits(row, sampler.rowPointer);
    if (sampler.draw(1, 0) < 0) {
      const message = "the model's logits are not numbers: its weights may be damaged";
      return { status: BAD_GATEWAY, message };
    }
    const message = "the sampling parameters leave no token to draw: all of them are masked";
    return { status: BAD_REQUEST, message };
  }

  /** Draws tokens along the draft until one differs, and removes the rows after it. */
  #verify(sequence: Sequence): FinishReason | null {
    const { speculation } = this.#options;
    const from = sequence.length;
    let accepted = 0;
    let finish: FinishReason | null = null;
    try {
      for (;;) {
        finish = this.#draw(sequence, sequence.firstRow + accepted);
        if (finish === "abort") break;
        const drawn = sequence.tokens[sequence.length - 1];
        if (speculation.token(sequence, accepted) !== drawn) break;
        accepted += 1;
        if (finish !== null) break;
      }
    } finally {
      // Also when a draw fails.
      this.residency.truncate(sequence, from + accepted);
    }
    if (sequence.draftLength === 0) return finish;
    speculation.acceptedTokens += accepted;
    sequence.verified(from - sequence.promptLength, sequence.draftLength, accepted);
    return finish;
  }
}
