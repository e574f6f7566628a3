// The embedded engine: continuous batching over one llama.cpp context, synchronous, one step at a time. As
// vLLM, it decides which requests run and whose KV stays within the token budget: requests are admitted first
// come, first served; when KV is short, parked KV is evicted first, oldest first, then the youngest running
// request is preempted. None of this, and no draft, may ever change a token that is drawn.
// It is one long class because waiting, running, parked and asleep are one state with one KV budget.

import { assert, unreachable } from "../../core/base/assert.ts";
import type { Clock } from "../../core/base/clock.ts";
import type { RequestId, WeightEpoch } from "../../core/base/ids.ts";
import type { DraftPlanner, StepTimes } from "../../core/draft/draft-length.ts";
import { DRAFT_TOKENS_MAX, type Drafter } from "../../core/draft/drafter.ts";
import type { FinishReason } from "../../core/request/request.ts";
import type {
  WorkerCapacity,
  WorkerCommand,
  WorkerEvent,
  WorkerStats,
} from "../../core/rollout/worker.ts";
import { LlamaContext } from "./context.ts";
import { unreadable } from "./files.ts";
import { Residency } from "./residency.ts";
import { type RunCommand, Sequence } from "./sequence.ts";
import { StepSpeculation } from "./speculation.ts";
import { kvBytesPerToken, LearnedStepCost, profileContext } from "./step-cost.ts";
import { BATCH_ROWS, PREFILL_ROWS, Stepper } from "./stepper.ts";
import { type LlamaWeights, shapeDifference } from "./weights.ts";

export interface LlamaEngineOptions {
  readonly model: LlamaWeights;
  readonly slots: number;
  readonly kvTokens: number;
  readonly contextTokens: number;
  readonly epoch: WeightEpoch;
  /** The CPU time of this thread, by which steps are measured: other load on the machine does not distort it. */
  readonly cpuClock: Clock;
  readonly speculation: { readonly drafter: Drafter; readonly planner: DraftPlanner };
  /** Tokens prefilled in one step, at most, over all requests. */
  readonly prefillRows?: number;
  /** Streams beyond the slots, for parked requests. */
  readonly spareStreams?: number;
}

const SPARE_STREAMS_MAX = 16;

export class LlamaEngine {
  readonly capacity: WorkerCapacity;
  readonly #options: LlamaEngineOptions;
  readonly #drafter: Drafter;
  readonly #speculation: StepSpeculation;
  readonly #stepper: Stepper;
  /** Cost of steps on this machine. Before `profile` has measured it, each row of a step costs the same. */
  readonly #cost = new LearnedStepCost({ ms: (_batch, rows) => rows });
  #model: LlamaWeights;
  #residency: Residency;
  #epoch: WeightEpoch;

  readonly #all = new Map<RequestId, Sequence>();
  /** Running sequences in order of admission: the last is the youngest. */
  readonly #running: Sequence[] = [];
  readonly #waiting: Sequence[] = [];
  /** Parked sequences, oldest first. */
  readonly #parked = new Set<Sequence>();

  #events: WorkerEvent[] = [];
  readonly #unsent = new Set<Sequence>();
  #urgent = false;
  #asleep = false;

  readonly #counts = {
    steps: 0,
    busyMs: 0,
    outputTokens: 0,
    prefillTokens: 0,
    recomputedTokens: 0,
    preemptions: 0,
    kvLoads: 0,
    kvLoadFailures: 0,
  };

  /** @throws AppError worker_failed: there is no memory for that many streams. */
  constructor(options: LlamaEngineOptions) {
    const { model, epoch, speculation, slots, kvTokens, contextTokens, cpuClock } = options;
    this.#options = options;
    this.#epoch = epoch;
    this.#model = model;
    this.#residency = this.#newResidency();
    this.#drafter = speculation.drafter;
    this.#speculation = new StepSpeculation({ ...speculation, clock: cpuClock });
    const stepper = {
      vocabularySize: model.info.shape.vocabularySize,
      speculation: this.#speculation,
      cpuClock,
      cost: this.#cost,
      slots,
      prefillRows: options.prefillRows ?? PREFILL_ROWS,
      counts: this.#counts,
    };
    this.#stepper = new Stepper(stepper, this.#residency);
    const bytesPerToken = kvBytesPerToken(this.#residency.context);
    this.capacity = { slots, kvTokens, contextTokens, kvBytesPerToken: bytesPerToken };
  }

  get model(): LlamaWeights {
    return this.#model;
  }

  get epoch(): WeightEpoch {
    return this.#epoch;
  }

  /** Whether an event other than tokens waits, which should be sent at once. */
  get urgent(): boolean {
    return this.#urgent;
  }

  /** Measures the cost of steps for about `budgetMs`. The engine must be empty, and stays so. */
  profile(budgetMs: number): StepTimes {
    assert(this.#all.size === 0, "only an empty engine is profiled");
    const clock = this.#options.cpuClock;
    this.#cost.profile = profileContext(this.#residency.context, { clock, budgetMs });
    return this.#cost;
  }

  command(command: WorkerCommand): void {
    switch (command.kind) {
      case "run":
        this.#run(command);
        break;
      case "export":
        this.#export(command.requestId);
        break;
      case "release":
        this.#release(command.requestId);
        break;
      case "park":
        this.#endEarly(command.requestId);
        break;
      case "adopt":
        this.#adopt(command);
        break;
      case "register_group":
        this.#drafter.register(command.groupId, command.prompt, command.past);
        for (const sequence of this.#all.values()) {
          if (sequence.draft?.groupId === command.groupId) this.#share(sequence);
        }
        break;
      case "delta": {
        const { groupId, sampleIndex, offset, tokens } = command;
        const result = this.#drafter.update(groupId, sampleIndex, offset, tokens);
        if (result.kind !== "gap") break;
        this.#push({ kind: "gap", groupId, sampleIndex, offset: result.have });
        break;
      }
      case "drop_group":
        this.#drafter.drop(command.groupId);
        break;
      case "advance":
        this.#advanceTo(command.epoch);
        break;
      default:
        unreachable(command);
    }
  }

  /**
   * Changes the weights, and drops all requests, KV, drafts and events of the old ones.
   * @throws AppError, and keeps the old weights: model_unreadable (nothing has changed) or worker_failed (all
   * requests are dropped).
   */
  reload(model: LlamaWeights, epoch: WeightEpoch): void {
    const difference = shapeDifference(this.#model.info.shape, model.info.shape);
    if (difference !== null) {
      throw unreadable(model.info.path, `another kind of model: ${difference}`);
    }
    this.dropAll();
    const old = this.#model;
    this.#model = model;
    if (!this.#asleep) {
      try {
        this.#renewResidency();
      } catch (error) {
        this.#model = old;
        this.#renewResidency();
        throw error;
      }
    }
    this.#epoch = epoch;
    this.#push({ kind: "advanced", epoch });
  }

  /** Begins an epoch with the present weights. */
  #advanceTo(epoch: WeightEpoch): void {
    if (epoch === this.#epoch) return;
    this.dropAll();
    this.#epoch = epoch;
    this.#push({ kind: "advanced", epoch });
  }

  /**
   * Frees the context and with it all KV. No token is lost: parked requests are reported as `evicted`, the
   * others wait, and their KV is computed again after `wake`.
   */
  sleep(): void {
    if (this.#asleep) return;
    for (let i = this.#running.length; i > 0; i -= 1)
      this.#preempt(this.#running.pop() as Sequence);
    for (const sequence of [...this.#parked]) this.#evict(sequence);
    for (const sequence of this.#waiting) this.#residency.drop(sequence);
    this.#residency.context.free();
    this.#asleep = true;
  }

  /** @throws AppError worker_failed: there is no memory for the context any more. */
  wake(): void {
    if (!this.#asleep) return;
    this.#renewResidency();
    this.#asleep = false;
  }

  /** Drops all requests, groups and events, without reporting them. */
  dropAll(): void {
    for (const sequence of this.#all.values()) this.#residency.drop(sequence);
    this.#all.clear();
    this.#running.length = 0;
    this.#waiting.length = 0;
    this.#parked.clear();
    this.#drafter.clear();
    this.#unsent.clear();
    this.#events = [];
    this.#urgent = false;
  }

  /** Runs one engine step; false: there was nothing to do. @throws AppError worker_failed. */
  step(): boolean {
    if (this.#asleep || (this.#running.length === 0 && this.#waiting.length === 0)) return false;
    const startMs = this.#options.cpuClock.nowMs();
    // As in vLLM, a step that had to preempt admits no request: the freed KV is needed by running ones.
    if (!this.#makeRoom()) this.#admit();
    this.#compute();
    this.#settle();
    this.#counts.steps += 1;
    this.#counts.busyMs += this.#options.cpuClock.nowMs() - startMs;
    return true;
  }

  /** Takes all events since the last call, in order; the tokens of a request come as one event. */
  drain(): WorkerEvent[] {
    for (const sequence of this.#unsent) this.#sendTokens(sequence);
    const events = this.#events;
    this.#events = [];
    this.#urgent = false;
    return events;
  }

  stats(): WorkerStats {
    const { draftMs, draftedTokens, acceptedTokens, drafts, savedMs } = this.#speculation;
    return {
      running: this.#running.length,
      waiting: this.#waiting.length,
      kvTokensUsed: this.#resident(),
      ...this.#counts,
      draftMs,
      draftedTokens,
      acceptedTokens,
      drafts,
      draftSavedMs: savedMs - draftMs,
      stepError: this.#cost.error,
    };
  }

  /** Frees the context; the loader of the model frees that. Safe to call twice. */
  close(): void {
    this.#residency.context.free();
  }

  #newResidency(): Residency {
    const { slots, contextTokens, spareStreams } = this.#options;
    const spare = Math.max(2, Math.min(SPARE_STREAMS_MAX, slots));
    return new Residency(
      new LlamaContext(this.#model, {
        streams: slots + (spareStreams ?? spare),
        streamTokens: contextTokens + DRAFT_TOKENS_MAX,
        batchRows: BATCH_ROWS,
      }),
    );
  }

  #renewResidency(): void {
    this.#residency.context.free();
    this.#residency = this.#newResidency();
    this.#stepper.residency = this.#residency;
  }

  #run(command: RunCommand): void {
    const { requestId } = command.request;
    const sequence = new Sequence(command);
    const earlier = this.#all.get(requestId);
    if (earlier !== undefined) {
      this.#unlist(earlier);
      this.#residency.inherit(earlier, sequence);
      sequence.computedBefore = Math.max(sequence.computedBefore, earlier.computedBefore);
    }
    if (sequence.kv !== null && sequence.computed > 0) {
      if (sequence.computed >= sequence.kv.tokens) sequence.kv = null;
      else this.#residency.drop(sequence);
    }
    if (sequence.length === sequence.chunkEnd) {
      this.#residency.drop(sequence);
      this.#push({ kind: "chunk_done", requestId, finish: "length" });
      return;
    }
    this.#all.set(requestId, sequence);
    this.#waiting.push(sequence);
    this.#residency.setIdle(sequence);
    this.#share(sequence);
  }

  /** Adds the tokens of a sequence to its draft group, so that the next ones leave no gap there. */
  #share(sequence: Sequence, from = sequence.draftStart): void {
    const { draft, draftStart, length } = sequence;
    if (draft === null || length === from) return;
    const tokens = sequence.tokens.subarray(from, length);
    this.#drafter.update(draft.groupId, draft.sampleIndex, from - draftStart, tokens);
  }

  #export(requestId: RequestId): void {
    this.#endEarly(requestId);
    const sequence = this.#all.get(requestId);
    if (sequence === undefined || !this.#parked.has(sequence)) {
      this.#push({ kind: "exported", requestId, kv: null });
      return;
    }
    const kv = sequence.computed === 0 ? null : this.#residency.export(sequence, this.#epoch);
    this.#residency.drop(sequence);
    this.#forget(sequence);
    this.#push({ kind: "exported", requestId, kv });
  }

  /** Ends the chunk with the tokens so far, if the request runs or waits here, and is divisible. */
  #endEarly(requestId: RequestId): void {
    const sequence = this.#all.get(requestId);
    if (sequence === undefined || this.#parked.has(sequence) || !sequence.spec.divisible) return;
    remove(this.#running, sequence);
    remove(this.#waiting, sequence);
    this.#park(sequence);
  }

  #release(requestId: RequestId): void {
    const sequence = this.#all.get(requestId);
    if (sequence === undefined) return;
    this.#residency.drop(sequence);
    this.#forget(sequence);
  }

  #adopt({ requestId, from, tokens }: Extract<WorkerCommand, { kind: "adopt" }>): void {
    const sequence = this.#all.get(from);
    if (sequence === undefined || !this.#parked.has(sequence)) {
      this.#push({ kind: "evicted", requestId });
      return;
    }
    this.#all.delete(from);
    sequence.spec = { ...sequence.spec, requestId };
    this.#all.set(requestId, sequence);
    if (sequence.computed <= tokens) return;
    // KV in plain memory cannot be cut.
    if (sequence.stream >= 0) this.#residency.truncate(sequence, tokens);
    else this.#evict(sequence);
  }

  #forget(sequence: Sequence): void {
    this.#unlist(sequence);
    this.#all.delete(sequence.spec.requestId);
  }

  #unlist(sequence: Sequence): void {
    this.#unsent.delete(sequence);
    this.#parked.delete(sequence);
    remove(this.#running, sequence);
    remove(this.#waiting, sequence);
  }

  /** KV tokens in use, by all requests. */
  #resident(): number {
    let tokens = 0;
    for (const sequence of this.#all.values()) tokens += sequence.computed;
    return tokens;
  }

  /** KV tokens in use, and those that running requests need for their next token. */
  #committed(): number {
    let tokens = this.#resident();
    for (const sequence of this.#running) tokens += sequence.pending;
    return tokens;
  }

  /** Frees KV until the running requests can continue. Returns whether some of them were preempted. */
  #makeRoom(): boolean {
    let preempted = false;
    while (this.#committed() > this.#options.kvTokens) {
      const holder = this.#oldestHolder(null);
      if (holder !== null) {
        this.#evict(holder);
        continue;
      }
      const youngest = this.#running.pop();
      assert(youngest !== undefined, "without running requests the budget is kept");
      this.#preempt(youngest);
      preempted = true;
    }
    return preempted;
  }

  /** The next sequence to evict: the one parked longest; else the last in the queue that has KV. */
  #oldestHolder(except: Sequence | null): Sequence | null {
    for (const sequence of this.#parked) return sequence;
    for (let i = this.#waiting.length - 1; i >= 0; i -= 1) {
      const sequence = this.#waiting[i] as Sequence;
      if (sequence !== except && sequence.computed > 0) return sequence;
    }
    return null;
  }

  #evict(sequence: Sequence): void {
    this.#residency.drop(sequence);
    if (!this.#parked.has(sequence)) return;
    this.#forget(sequence);
    this.#push({ kind: "evicted", requestId: sequence.spec.requestId });
  }

  #preempt(sequence: Sequence): void {
    const tokens = sequence.computed;
    this.#sendTokens(sequence);
    this.#residency.drop(sequence);
    this.#waiting.unshift(sequence);
    this.#counts.preemptions += 1;
    this.#push({ kind: "preempted", requestId: sequence.spec.requestId, tokens });
  }

  /** Admits requests, first come, first served, while there is a slot and KV for all tokens that a request has now. */
  #admit(): void {
    const { slots, kvTokens } = this.#options;
    while (this.#running.length < slots) {
      const next = this.#waiting[0];
      if (next === undefined) return;
      let excess = this.#committed() + next.pending - kvTokens;
      if (excess > this.#evictable(next)) return;
      while (excess > 0) {
        const holder = this.#oldestHolder(next);
        assert(holder !== null, "what is evictable is found");
        excess -= holder.computed;
        this.#evict(holder);
      }
      this.#waiting.shift();
      this.#running.push(next);
      this.#activate(next);
    }
  }

  /** KV tokens of parked and waiting sequences, without those of `except`, which waits. */
  #evictable(except: Sequence): number {
    const others = this.#resident() - except.computed;
    return this.#running.reduce((tokens, { computed }) => tokens - computed, others);
  }

  #activate(sequence: Sequence): void {
    const kv = this.#residency.activate(sequence, this.#epoch);
    if (kv === "loaded") this.#counts.kvLoads += 1;
    if (kv === "refused") this.#counts.kvLoadFailures += 1;
    if (sequence.outputLength === 0) sequence.promptCached ??= sequence.computed;
  }

  /** Computes a step of the running sequences, and takes the tokens that it draws. */
  #compute(): void {
    const { kvTokens } = this.#options;
    this.#residency.gather(this.#running);
    const added = this.#stepper.plan(this.#running, kvTokens - this.#committed());
    assert(this.#resident() + added <= kvTokens, "the KV budget is kept");
    this.#stepper.run(this.#running);
    for (const sequence of this.#running) {
      if (sequence.length === sequence.known) continue;
      this.#share(sequence, sequence.known);
      sequence.known = sequence.length;
      this.#unsent.add(sequence);
    }
  }

  /** Ends complete responses and chunks; the other sequences keep running, in their order. */
  #settle(): void {
    let count = 0;
    for (let i = 0; i < this.#running.length; i += 1) {
      const sequence = this.#running[i] as Sequence;
      if (sequence.finish !== null) {
        this.#finish(sequence, sequence.finish);
      } else if (sequence.length === sequence.chunkEnd) {
        this.#park(sequence);
      } else {
        this.#running[count] = sequence;
        count += 1;
      }
    }
    this.#running.length = count;
  }

  #finish(sequence: Sequence, finish: FinishReason): void {
    const { requestId, keepsKv = false } = sequence.spec;
    this.#sendTokens(sequence);
    if (keepsKv && finish !== "abort") this.#setAside(sequence);
    else {
      this.#residency.drop(sequence);
      this.#all.delete(requestId);
    }
    const { refusal } = sequence;
    const why = refusal === null ? {} : { refusal };
    this.#push({ kind: "chunk_done", requestId, finish, ...why, ...sequence.counts() });
  }

  #setAside(sequence: Sequence): void {
    this.#parked.add(sequence);
    this.#residency.setIdle(sequence);
  }

  #park(sequence: Sequence): void {
    this.#sendTokens(sequence);
    this.#setAside(sequence);
    const { requestId } = sequence.spec;
    this.#push({ kind: "chunk_done", requestId, finish: null, ...sequence.counts() });
  }

  #sendTokens(sequence: Sequence): void {
    if (!this.#unsent.delete(sequence)) return;
    this.#events.push(sequence.takeTokens());
  }

  #push(event: WorkerEvent): void {
    this.#events.push(event);
    this.#urgent = true;
  }
}

function remove(list: Sequence[], sequence: Sequence): void {
  const index = list.indexOf(sequence);
  if (index >= 0) list.splice(index, 1);
}
