// One step over the running requests: lays out their rows, computes them, draws their tokens. It decides how
// the rows of a step are divided among decoding, drafts and prefill; the engine decides which requests run.

import type { Clock } from "../../core/base/clock.ts";
import { uniformAt } from "../../core/base/hash.ts";
import type { FinishReason } from "../../core/request/request.ts";
import type { LlamaContext } from "./context.ts";
import { BAD_GATEWAY, BAD_REQUEST, RequestFault, refusalOf } from "./limits.ts";
import type { Residency } from "./residency.ts";
import type { Sampler } from "./sampler.ts";
import type { Sequence } from "./sequence.ts";
import type { StepSpeculation } from "./speculation.ts";
import type { LearnedStepCost } from "./step-cost.ts";
import { GRAPH_ROWS } from "./structs.ts";

export interface StepperOptions {
  readonly context: LlamaContext;
  readonly residency: Residency;
  readonly sampler: Sampler;
  readonly speculation: StepSpeculation;
  readonly cpuClock: Clock;
  /** Used by the draft planner, and updated with step times. */
  readonly stepMs: LearnedStepCost;
  /** Tokens prefilled in one step, at most. */
  readonly prefillRows: number;
  /** Rows that drafts may add to a step, at most. */
  readonly draftRows: number;
}

/** Cumulative counters, which continue over a change of weights. */
export interface StepperCounts {
  outputTokens: number;
  prefillTokens: number;
  recomputedTokens: number;
}

export class Stepper {
  readonly #options: StepperOptions;
  readonly #counts: StepperCounts;
  readonly #decoding: Sequence[] = [];
  /** Sequences with rows in the step, in ascending order of their streams. */
  readonly #parts: Sequence[] = [];

  constructor(options: StepperOptions, counts: StepperCounts) {
    this.#options = options;
    this.#counts = counts;
  }

  /**
   * Decides each request's rows: its pending token and its draft, or a piece of prefill. Drafts get at most `room` KV
   * tokens. Returns the KV tokens that the step adds.
   */
  plan(running: readonly Sequence[], options: { room: number; drafting: boolean }): number {
    this.#decoding.length = 0;
    for (const sequence of running) {
      sequence.draftLength = 0;
      if (sequence.pending === 1) this.#decoding.push(sequence);
    }
    const { speculation, stepMs, draftRows, prefillRows } = this.#options;
    const batch = this.#decoding.length;
    let draftLength = 0;
    if (options.drafting) {
      // More rows than a graph takes would read the weights once more.
      const room = Math.min(draftRows, GRAPH_ROWS - batch, options.room);
      speculation.propose(this.#decoding, room, stepMs);
      draftLength = speculation.length;
    }
    let prefillLeft = prefillRows;
    let tokens = 0;
    for (const sequence of running) {
      if (sequence.pending === 1) {
        sequence.rowCount = 1 + draftLength;
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
    const { context, speculation, cpuClock, stepMs } = this.#options;
    const { rows } = context;
    const prefills = this.#parts.some(({ pending }) => pending > 1);
    const startMs = cpuClock.nowMs();
    context.decode();
    const acceptedBefore = speculation.acceptedTokens;
    for (const sequence of running) if (sequence.rowCount > 0) this.#readOrRefuse(sequence);
    // With what verification takes beside the rows.
    if (!prefills) stepMs.observe(this.#parts.length, rows, cpuClock.nowMs() - startMs);
    this.#countSaved(acceptedBefore);
  }

  /** Counts the time that drafts saved: each accepted token would have taken its share of a plain step. */
  #countSaved(acceptedBefore: number): void {
    const { speculation, stepMs } = this.#options;
    const batch = this.#decoding.length;
    if (batch === 0 || speculation.length === 0) return;
    const rows = batch * (1 + speculation.length);
    const plainMs = stepMs.ms(batch, batch);
    const accepted = speculation.acceptedTokens - acceptedBefore;
    speculation.savedMs += (accepted / batch) * plainMs - (stepMs.ms(batch, rows) - plainMs);
  }

  /**
   * Reads the results of one request in a step. It reads only the request's rows, and changes only its state and its
   * stream, so a fault ends this request and no other.
   */
  #readOrRefuse(sequence: Sequence): void {
    try {
      this.#read(sequence);
    } catch (error) {
      const refusal = refusalOf(error);
      if (refusal === null) throw error;
      sequence.refusal = refusal;
      sequence.finish = "abort";
    }
  }

  /** Adds rows for the pending token and its draft, and padding rows up to the step's draft length. */
  #addDecodeRows(sequence: Sequence): void {
    const { context, speculation } = this.#options;
    const { computed, stream } = sequence;
    let token = sequence.tokens[computed] as number;
    sequence.firstRow = context.add(token, computed, stream, true);
    for (let i = 0; i + 1 < sequence.rowCount; i += 1) {
      const isDraft = i < sequence.draftLength;
      if (isDraft) token = speculation.token(sequence, i);
      context.add(token, computed + 1 + i, stream, isDraft);
    }
  }

  #addPrefillRows(sequence: Sequence): void {
    const from = sequence.computed;
    const to = from + sequence.rowCount;
    for (let position = from; position < to; position += 1) {
      const token = sequence.tokens[position] as number;
      const last = position + 1 === sequence.length;
      sequence.firstRow = this.#options.context.add(token, position, sequence.stream, last);
    }
    this.#counts.prefillTokens += to - from;
    const again = Math.min(to, sequence.computedBefore) - from;
    this.#counts.recomputedTokens += Math.max(0, again);
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
    this.#counts.outputTokens += sequence.length - from;
  }

  #drawOne(sequence: Sequence): FinishReason | null {
    sequence.computed = sequence.length;
    return this.#draw(sequence, sequence.firstRow);
  }

  /** Draws the next token from a row of logits. Returns the finish reason if the response ends, else null. */
  #draw(sequence: Sequence, row: number): FinishReason | null {
    const { sampling } = sequence.spec;
    const { sampler } = this.#options;
    this.#options.context.copyLogits(row, sampler.rowPointer);
    if (sampling.shaping !== null) {
      sequence.shaping?.apply(sampler.row, sequence.outputLength);
      // As in vLLM, a greedy request is not filtered: it takes the likeliest token anyway.
      if (sampling.temperature > 0) sampler.filter(sampling.temperature, sampling.shaping);
    }
    const u = sampling.temperature > 0 ? uniformAt(sequence.spec.draw, sequence.outputLength) : 0;
    const token = sampler.draw(sampling.temperature, u);
    if (token < 0) throw this.#undrawable(row);
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

  /** The fault if no token can be drawn: the unshaped logits show whether the model or the request is to blame. */
  #undrawable(row: number): RequestFault {
    const { context, sampler } = this.#options;
    context.copyLogits(row, sampler.rowPointer);
    if (sampler.draw(1, 0) < 0) {
      const message = "the model's logits are not numbers: its weights may be damaged";
      return new RequestFault({ status: BAD_GATEWAY, message });
    }
    const message = "the sampling parameters leave no token to draw: all of them are masked";
    return new RequestFault({ status: BAD_REQUEST, message });
  }

  /** Draws tokens along the draft until one differs, and removes the rows after it. */
  #verify(sequence: Sequence): FinishReason | null {
    const { speculation, residency } = this.#options;
    const from = sequence.length;
    let accepted = 0;
    let finish: FinishReason | null = null;
    try {
      for (;;) {
        finish = this.#draw(sequence, sequence.firstRow + accepted);
        const drawn = sequence.tokens[sequence.length - 1];
        if (speculation.token(sequence, accepted) !== drawn) break;
        accepted += 1;
        if (finish !== null) break;
      }
    } finally {
      // Also when a draw fails.
      residency.truncate(sequence, from + accepted);
    }
    if (sequence.draftLength === 0) return finish;
    speculation.acceptedTokens += accepted;
    sequence.verified(from - sequence.promptLength, sequence.draftLength, accepted);
    return finish;
  }
}
