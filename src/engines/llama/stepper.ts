// One pass over the running requests: lays out their rows, computes them, draws their tokens. It decides
// how the rows of a step are shared between decoding, drafts and prefill; who runs is decided before it.

import { assert } from "../../core/base/assert.ts";
import type { Clock } from "../../core/base/clock.ts";
import { uniformAt } from "../../core/base/hash.ts";
import type { FinishReason, LogitShaping } from "../../core/request/request.ts";
import type { LlamaContext } from "./context.ts";
import { BAD_GATEWAY, BAD_REQUEST, RequestFault, refusalOf } from "./fault.ts";
import type { Residency } from "./residency.ts";
import type { Sampler } from "./sampler.ts";
import type { Sequence } from "./sequence.ts";
import type { Speculation } from "./speculation.ts";
import type { LearnedStepCost } from "./step-cost.ts";

export interface StepperOptions {
  readonly context: LlamaContext;
  readonly residency: Residency;
  readonly sampler: Sampler;
  readonly speculation: Speculation | null;
  readonly cpuClock: Clock;
  /** Used by the draft planner, and updated with step times. */
  readonly stepMs: LearnedStepCost;
  /** Tokens prefilled in one step, at most. */
  readonly prefillRows: number;
  /** Rows that drafts may add to a step, at most. */
  readonly draftRows: number;
}

/** Cumulative; they outlive a change of weights. */
export interface StepperCounts {
  outputTokens: number;
  prefillTokens: number;
  recomputedTokens: number;
}

/** Rows of one stream in the step's batch: a sequence's own (path -1), or one path of its draft. */
interface Part {
  sequence: Sequence;
  path: number;
  stream: number;
}

export class Stepper {
  readonly #options: StepperOptions;
  readonly #counts: StepperCounts;
  readonly #decoding: Sequence[] = [];
  readonly #parts: Part[] = [];
  readonly #partPool: Part[] = [];

  constructor(options: StepperOptions, counts: StepperCounts) {
    this.#options = options;
    this.#counts = counts;
  }

  /**
   * Decides each request's rows: its pending token and drafts, or a piece of prefill. Drafts take at most
   * `room` KV tokens. Returns the KV tokens that the step adds, copies for branches included.
   */
  plan(running: readonly Sequence[], options: { room: number; drafting: boolean }): number {
    this.#decoding.length = 0;
    for (const sequence of running) {
      sequence.pathFrom = 0;
      sequence.pathTo = 0;
      sequence.proposedTokens = 0;
      if (sequence.pending === 1) this.#decoding.push(sequence);
    }
    const { speculation, residency, stepMs, draftRows, prefillRows } = this.#options;
    if (speculation !== null && options.drafting) {
      const room = { rows: draftRows, tokens: options.room };
      speculation.propose(this.#decoding, residency, { room, stepMs });
    }
    let prefillLeft = prefillRows;
    let tokens = 0;
    for (const sequence of running) {
      if (sequence.pending === 1) {
        sequence.rowCount = this.#decodeRowCount(sequence);
        tokens += Math.max(0, sequence.pathTo - sequence.pathFrom - 1) * sequence.computed;
      } else {
        sequence.rowCount = Math.min(sequence.pending, prefillLeft);
        prefillLeft -= sequence.rowCount;
      }
      tokens += sequence.rowCount;
    }
    return tokens;
  }

  /** Computes what `plan` laid out and draws tokens; sets `finish` where a response ended. */
  run(running: readonly Sequence[]): void {
    this.#collectParts(running);
    for (const { sequence, path } of this.#parts) {
      if (sequence.pending > 1) this.#addPrefillRows(sequence);
      else if (path < 0) this.#addPendingRow(sequence);
      else this.#addPathRows(sequence, path);
    }
    this.#decode();
    const acceptedBefore = this.#options.speculation?.acceptedTokens ?? 0;
    for (const sequence of running) if (sequence.rowCount > 0) this.#readOrRefuse(sequence);
    this.#countSaved(acceptedBefore);
  }

  /**
   * Without drafts, the tokens that were accepted would have taken their share of a plain step each, and this step its
   * plain time.
   */
  #countSaved(acceptedBefore: number): void {
    const { speculation, stepMs } = this.#options;
    const batch = this.#decoding.length;
    if (speculation === null || batch === 0) return;
    let rows = 0;
    for (const { rowCount } of this.#decoding) rows += rowCount;
    if (rows === batch) return;
    const plainMs = stepMs.ms(batch, batch);
    const accepted = speculation.acceptedTokens - acceptedBefore;
    speculation.savedMs += (accepted / batch) * plainMs - (stepMs.ms(batch, rows) - plainMs);
  }

  /**
   * The boundary of one request in a step: what is read here is its own rows, and what is changed its own state and
   * streams. Whatever goes wrong ends this request and no other.
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

  #decode(): void {
    const { context, cpuClock, stepMs } = this.#options;
    const rows = context.rows;
    const startMs = cpuClock.nowMs();
    context.decode();
    const prefills = this.#parts.some(({ sequence }) => sequence.pending > 1);
    if (!prefills) stepMs.observe(this.#parts.length, rows, cpuClock.nowMs() - startMs);
  }

  #decodeRowCount(sequence: Sequence): number {
    let rows = Math.max(1, sequence.pathTo - sequence.pathFrom);
    for (let path = sequence.pathFrom; path < sequence.pathTo; path += 1) {
      rows += this.#speculating().paths.length(path);
    }
    return rows;
  }

  /**
   * The parts of the batch, in ascending order of their streams: llama.cpp starts a new graph wherever the
   * next stream's number is not one more than the last (16 rows in falling order take 3.6 times as long).
   */
  #collectParts(running: readonly Sequence[]): void {
    this.#parts.length = 0;
    for (const sequence of running) {
      if (sequence.rowCount === 0) continue;
      if (sequence.pathFrom === sequence.pathTo) this.#addPart(sequence, -1, sequence.stream);
      for (let path = sequence.pathFrom; path < sequence.pathTo; path += 1) {
        this.#addPart(sequence, path, this.#speculating().paths.streams[path] as number);
      }
    }
    this.#parts.sort((a, b) => a.stream - b.stream);
  }

  #addPart(sequence: Sequence, path: number, stream: number): void {
    const index = this.#parts.length;
    let part = this.#partPool[index];
    if (part === undefined) {
      part = { sequence, path, stream };
      this.#partPool.push(part);
    }
    part.sequence = sequence;
    part.path = path;
    part.stream = stream;
    this.#parts.push(part);
  }

  #addPendingRow(sequence: Sequence): void {
    const position = sequence.computed;
    const pending = sequence.tokens[position] as number;
    sequence.firstRow = this.#options.context.add(pending, position, sequence.stream, true);
  }

  #addPathRows(sequence: Sequence, path: number): void {
    const { context } = this.#options;
    const { paths, proposed } = this.#speculating();
    const position = sequence.computed;
    const stream = paths.streams[path] as number;
    const pending = sequence.tokens[position] as number;
    paths.rows[path] = context.add(pending, position, stream, true);
    for (let i = 0; i < paths.length(path); i += 1) {
      const token = proposed.tokens[paths.node(path, i)] as number;
      context.add(token, position + 1 + i, stream, true);
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
    if (sequence.pending > 1) {
      sequence.computed += sequence.rowCount;
      if (sequence.pending > 0) return;
    }
    const from = sequence.length;
    sequence.finish =
      sequence.pathFrom < sequence.pathTo ? this.#verify(sequence) : this.#drawOne(sequence);
    this.#counts.outputTokens += sequence.length - from;
    this.#options.speculation?.settleShadow(sequence);
  }

  #drawOne(sequence: Sequence): FinishReason | null {
    sequence.computed = sequence.length;
    return this.#draw(sequence, sequence.firstRow);
  }

  /** Draws the next token from a row of logits; not null: it ended the response. */
  #draw(sequence: Sequence, row: number): FinishReason | null {
    const { sampling } = sequence.spec;
    const { sampler } = this.#options;
    this.#options.context.copyLogits(row, sampler.rowPointer);
    if (sampling.shaping !== null) this.#shape(sequence, sampling.shaping);
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

  /** Whether the model or the request left nothing to draw: the model's own logits tell. */
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

  /** As in vLLM, a greedy request is shaped but not filtered: it takes the likeliest token anyhow. */
  #shape(sequence: Sequence, shaping: LogitShaping): void {
    const { sampler } = this.#options;
    const { temperature } = sequence.spec.sampling;
    sequence.shaping?.apply(sampler.row, sequence.outputLength);
    if (temperature > 0) sampler.filter(temperature, shaping);
  }

  /** Draws along the drafts as long as they agree with what is drawn; keeps the branch that did. */
  #verify(sequence: Sequence): FinishReason | null {
    const speculation = this.#speculating();
    const { paths, proposed } = speculation;
    const { pathFrom, pathTo } = sequence;
    const from = sequence.length;
    let path = pathFrom;
    let accepted = 0;
    let acceptedOnFirst = 0;
    let finish: FinishReason | null = null;
    try {
      for (;;) {
        finish = this.#draw(sequence, (paths.rows[path] as number) + accepted);
        const token = sequence.tokens[sequence.length - 1] as number;
        const at = { from: pathFrom, to: pathTo, path, depth: accepted };
        const next = paths.follow(proposed, at, token);
        if (next >= 0) {
          accepted += 1;
          path = next;
          if (path === pathFrom) acceptedOnFirst = accepted;
        }
        if (next < 0 || finish !== null) break;
      }
    } finally {
      // Also when a draw fails: no branch stays behind.
      sequence.computed = from + accepted;
      this.#commitPath(sequence, path);
    }
    speculation.acceptedTokens += accepted;
    sequence.verified(from - sequence.promptLength, sequence.proposedTokens, accepted);
    speculation.observe(sequence, acceptedOnFirst, finish !== null);
    return finish;
  }

  /** Makes the stream of `path` the sequence's, cut to what was accepted, and frees the other branches. */
  #commitPath(sequence: Sequence, path: number): void {
    const { paths } = this.#speculating();
    for (let other = sequence.pathFrom; other < sequence.pathTo; other += 1) {
      if (other !== path) this.#options.residency.releaseBranch(paths.streams[other] as number);
    }
    sequence.stream = paths.streams[path] as number;
    this.#options.residency.truncate(sequence, sequence.computed);
  }

  #speculating(): Speculation {
    const { speculation } = this.#options;
    assert(speculation !== null, "only an engine with a drafter has drafts");
    return speculation;
  }
}
