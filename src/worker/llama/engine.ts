// The embedded engine: continuous batching over one llama.cpp context, synchronous, one step at a time. It
// decides who runs, who waits and whose KV stays within the token budget, as vLLM does: waiting requests
// enter first come first served; when KV is short, parked KV goes first, oldest first, then the youngest running
// request is preempted. It must never let any of that, or a draft, change a token that is drawn.

import { assert, unreachable } from "../../base/assert.ts";
import type { Clock } from "../../base/clock.ts";
import { AppError } from "../../base/errors.ts";
import { uniformAt } from "../../base/hash.ts";
import type { RequestId, WeightEpoch } from "../../base/ids.ts";
import { DRAFT_TOKENS_MAX, type Drafter } from "../../draft/drafter.ts";
import type { FinishReason } from "../../request/request.ts";
import type {
  WorkerCapacity,
  WorkerCommand,
  WorkerEvent,
  WorkerStats,
} from "../../rollout/worker.ts";
import { LlamaContext } from "./context.ts";
import { DraftGroups } from "./draft-groups.ts";
import { Residency } from "./residency.ts";
import { Sampler } from "./sampler.ts";
import { type RunCommand, Sequence } from "./sequence.ts";
import { type DraftPlanner, Speculation } from "./speculation.ts";
import { ProfiledStepCost, profileSteps, type StepCost } from "./step-cost.ts";
import { EngineProbe } from "./step-probe.ts";
import { type LlamaWeights, shapeDifference } from "./weights.ts";

export interface EngineOptions {
  readonly model: LlamaWeights;
  readonly slots: number;
  readonly kvTokens: number;
  readonly contextTokens: number;
  readonly epoch: WeightEpoch;
  readonly clock: Clock;
  /** null: never drafts. */
  readonly speculation: { readonly drafter: Drafter; readonly planner: DraftPlanner } | null;
  /** Tokens prefilled in one step, at most, over all requests. */
  readonly prefillRows?: number;
  /** Streams beyond the slots, for parked requests and branches of draft trees. */
  readonly spareStreams?: number;
}

/** Two graphs of prefill a step: decoding requests never wait longer than that for a new one. */
const PREFILL_ROWS = 96;
/** Rows of one llama_decode, at most. What slots and prefill leave is for drafts. */
const BATCH_ROWS = 512;
export const SLOTS_MAX = 128;
const SPARE_STREAMS_MAX = 16;

export class LlamaEngine {
  readonly capacity: WorkerCapacity;
  readonly #options: EngineOptions;
  readonly #streams: number;
  readonly #prefillRows: number;
  readonly #sampler: Sampler;
  readonly #speculation: Speculation | null;
  readonly #groups: DraftGroups | null;
  #context: LlamaContext;
  #residency: Residency;
  #shape: LlamaWeights["info"]["shape"];
  #epoch: WeightEpoch;
  #cost: StepCost = new ProfiledStepCost([{ batch: 1, rows: 1, ms: 1 }], 0);

  readonly #all = new Map<RequestId, Sequence>();
  /** In order of admission: the last is the youngest. */
  readonly #running: Sequence[] = [];
  readonly #waiting: Sequence[] = [];
  /** Oldest first. */
  readonly #parked = new Set<Sequence>();
  readonly #decoding: Sequence[] = [];

  #events: WorkerEvent[] = [];
  readonly #unsent = new Set<Sequence>();
  #urgent = false;

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
  #kvTokensPeak = 0;

  /** @throws AppError worker_failed, or invalid_config for a capacity the engine cannot have. */
  constructor(options: EngineOptions) {
    checkOptions(options);
    this.#options = options;
    this.#epoch = options.epoch;
    this.#shape = options.model.info.shape;
    this.#prefillRows = options.prefillRows ?? PREFILL_ROWS;
    const spare = Math.max(2, Math.min(SPARE_STREAMS_MAX, options.slots));
    this.#streams = options.slots + (options.spareStreams ?? spare);
    this.#sampler = new Sampler(this.#shape.vocabularySize);
    this.#context = this.#openContext(options.model);
    this.#residency = new Residency(this.#context, this.#streams);
    const { speculation, clock, slots } = options;
    this.#speculation = speculation && new Speculation({ ...speculation, clock, slots });
    this.#groups = speculation && new DraftGroups(speculation.drafter, clock);
    this.capacity = {
      slots,
      kvTokens: options.kvTokens,
      contextTokens: options.contextTokens,
      kvBytesPerToken: this.#probe().kvBytesPerToken(),
    };
  }

  get epoch(): WeightEpoch {
    return this.#epoch;
  }

  /** What steps cost here: flat until `profile` has run. */
  get stepCost(): StepCost {
    return this.#cost;
  }

  /** The most KV tokens that were resident at any time, drafts and branches included. */
  get kvTokensPeak(): number {
    return this.#kvTokensPeak;
  }

  /** An event waits that a listener acts upon: everything but tokens. */
  get urgent(): boolean {
    return this.#urgent;
  }

  /** Measures what steps cost, in about `budgetMs`. Only while nothing is here; leaves no trace. */
  profile(budgetMs: number): StepCost {
    assert(this.#all.size === 0, "only an empty engine is profiled");
    this.#cost = profileSteps(this.#probe(), budgetMs);
    return this.#cost;
  }

  /** @throws AppError worker_failed: a request that can never run here. The engine is then unusable. */
  command(command: Exclude<WorkerCommand, { kind: "reload" }>): void {
    switch (command.kind) {
      case "run":
        this.#run(command);
        break;
      case "prioritize": {
        const sequence = this.#all.get(command.requestId);
        if (sequence !== undefined) sequence.priority = command.priority;
        break;
      }
      case "export":
        this.#export(command.requestId);
        break;
      case "release":
        this.#release(command.requestId);
        break;
      case "register_group":
        this.#groups?.register(command, this.#all.values());
        break;
      case "delta": {
        const gap = this.#groups?.delta(command) ?? null;
        if (gap !== null) this.#push(gap);
        break;
      }
      case "drop_group":
        this.#groups?.drop(command.groupId);
        break;
      default:
        unreachable(command);
    }
  }

  /**
   * Other weights: whatever was computed, drafted or not yet drained under the old ones is dropped.
   * @throws AppError model_unreadable when the model cannot take the old one's place.
   */
  reload(model: LlamaWeights, epoch: WeightEpoch): void {
    const difference = shapeDifference(this.#shape, model.info.shape);
    if (difference !== null) {
      throw new AppError(
        "model_unreadable",
        `${model.info.path}: another kind of model: ${difference}`,
      );
    }
    this.dropAll();
    this.#context.free();
    this.#context = this.#openContext(model);
    this.#residency = new Residency(this.#context, this.#streams);
    this.#epoch = epoch;
    this.#push({ kind: "reloaded", epoch });
  }

  /** Forgets every request, group and event, without notice. */
  dropAll(): void {
    for (const sequence of this.#all.values()) this.#residency.drop(sequence);
    this.#all.clear();
    this.#running.length = 0;
    this.#waiting.length = 0;
    this.#parked.clear();
    this.#groups?.clear();
    this.#unsent.clear();
    this.#events = [];
    this.#urgent = false;
  }

  /** One engine pass. false: there was nothing to do. @throws AppError worker_failed. */
  step(): boolean {
    if (this.#running.length === 0 && this.#waiting.length === 0) return false;
    const startMs = this.#options.clock.nowMs();
    this.#groups?.sweep(this.#all.values());
    // As in vLLM, a step that had to preempt admits nobody: the room it made is spoken for.
    if (!this.#makeRoom()) this.#admit();
    this.#collectRows();
    this.#context.decode();
    this.#readRows();
    this.#counts.steps += 1;
    this.#counts.busyMs += this.#options.clock.nowMs() - startMs;
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
    const speculation = this.#speculation;
    return {
      running: this.#running.length,
      waiting: this.#waiting.length,
      kvTokensUsed: this.#resident(),
      ...this.#counts,
      draftMs: speculation?.draftMs ?? 0,
      draftedTokens: speculation?.draftedTokens ?? 0,
      acceptedTokens: speculation?.acceptedTokens ?? 0,
      drafts: speculation?.drafts ?? 0,
    };
  }

  /** Frees the context; the model is its loader's. Safe to call twice. */
  close(): void {
    this.#context.free();
  }

  #openContext(model: LlamaWeights): LlamaContext {
    const streamTokens = this.#options.contextTokens + DRAFT_TOKENS_MAX;
    return new LlamaContext(model, {
      streams: this.#streams,
      streamTokens,
      batchRows: BATCH_ROWS,
    });
  }

  #probe(): EngineProbe {
    const { slots, clock } = this.#options;
    const rowsMax = Math.min(BATCH_ROWS, slots * (DRAFT_TOKENS_MAX + 1));
    return new EngineProbe(this.#context, { slots, rowsMax, clock });
  }

  #run(command: RunCommand): void {
    this.#check(command);
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
    this.#groups?.catchUp(sequence);
  }

  /** What upstream must have refused already; here it stops the engine, which must not hang. */
  #check({ request, output, chunkTokens }: RunCommand): void {
    const { kvTokens, contextTokens } = this.#options;
    const { vocabularySize } = this.#shape;
    const tokens = request.prompt.length + request.sampling.tokensMax;
    const name = `request ${request.requestId} of group ${request.groupId}`;
    if (request.prompt.length === 0) throw refused(name, "has an empty prompt");
    if (!(chunkTokens >= 1)) throw refused(name, `asks for a chunk of ${chunkTokens} tokens`);
    if (tokens > contextTokens) {
      throw refused(name, `may take ${tokens} tokens, the context holds ${contextTokens}`);
    }
    // The last token is never computed.
    if (tokens - 1 > kvTokens) {
      throw refused(name, `may take ${tokens - 1} KV tokens, the budget is ${kvTokens}`);
    }
    for (const list of [request.prompt, output]) {
      const wrong = list.find((token) => token < 0 || token >= vocabularySize);
      if (wrong !== undefined) {
        throw refused(name, `holds token ${wrong}, the vocabulary ends at ${vocabularySize - 1}`);
      }
    }
  }

  #export(requestId: RequestId): void {
    const sequence = this.#all.get(requestId);
    if (sequence === undefined || !this.#parked.has(sequence)) {
      this.#push({ kind: "exported", requestId, kv: null });
      return;
    }
    const kv = this.#residency.export(sequence, this.#epoch);
    this.#forget(sequence);
    this.#push({ kind: "exported", requestId, kv });
  }

  #release(requestId: RequestId): void {
    const sequence = this.#all.get(requestId);
    if (sequence === undefined) return;
    this.#residency.drop(sequence);
    this.#forget(sequence);
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

  /** KV tokens held, whoever holds them. */
  #resident(): number {
    let tokens = 0;
    for (const sequence of this.#all.values()) tokens += sequence.computed;
    return tokens;
  }

  /** KV tokens spoken for: what is held, and what the running requests need for their next token. */
  #committed(): number {
    let tokens = this.#resident();
    for (const sequence of this.#running) tokens += sequence.pending;
    return tokens;
  }

  /** Frees KV until the running requests can go on. true: some of them were preempted. */
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

  /** Whose KV goes first: the longest parked; then a waiting request's, from the queue's end. */
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
    sequence.shadow = null;
    this.#waiting.unshift(sequence);
    this.#counts.preemptions += 1;
    this.#push({ kind: "preempted", requestId: sequence.spec.requestId, tokens });
  }

  /** First come, first served, while there is a slot and room for all the tokens a request has now. */
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

  #evictable(except: Sequence): number {
    let tokens = 0;
    for (const sequence of this.#parked) tokens += sequence.computed;
    for (const sequence of this.#waiting) if (sequence !== except) tokens += sequence.computed;
    return tokens;
  }

  #activate(sequence: Sequence): void {
    const found = this.#residency.activate(sequence, this.#epoch);
    if (found === "loaded") this.#counts.kvLoads += 1;
    if (found === "refused") this.#counts.kvLoadFailures += 1;
  }

  /** Puts the step's rows into the batch: a token of each decoding request with its drafts, and prefill. */
  #collectRows(): void {
    this.#decoding.length = 0;
    for (const sequence of this.#running) {
      sequence.pathFrom = 0;
      sequence.pathTo = 0;
      sequence.rowCount = 0;
      if (sequence.pending === 1) this.#decoding.push(sequence);
    }
    this.#propose();
    for (const sequence of this.#decoding) this.#addDecodeRows(sequence);
    let left = this.#prefillRows;
    for (const sequence of this.#running) {
      if (sequence.pending > 1 && left > 0) left -= this.#addPrefillRows(sequence, left);
    }
    const used = this.#residentInStep();
    assert(used <= this.#options.kvTokens, "the KV budget is kept");
    this.#kvTokensPeak = Math.max(this.#kvTokensPeak, used);
  }

  #propose(): void {
    if (this.#speculation === null || this.#groups?.size === 0) return;
    const tokens = this.#options.kvTokens - this.#committed();
    const rows = BATCH_ROWS - this.#options.slots - this.#prefillRows;
    this.#speculation.propose(this.#decoding, this.#residency, {
      room: { rows, tokens },
      stepMs: this.#cost,
    });
  }

  #addDecodeRows(sequence: Sequence): void {
    const position = sequence.computed;
    const pending = sequence.tokens[position] as number;
    if (sequence.pathFrom === sequence.pathTo) {
      sequence.firstRow = this.#context.add(pending, position, sequence.stream, true);
      sequence.rowCount = 1;
      return;
    }
    const speculation = this.#speculating();
    const { paths, proposed } = speculation;
    for (let path = sequence.pathFrom; path < sequence.pathTo; path += 1) {
      const stream = paths.streams[path] as number;
      paths.rows[path] = this.#context.add(pending, position, stream, true);
      sequence.rowCount += 1;
      for (let i = 0; i < paths.length(path); i += 1) {
        const token = proposed.tokens[paths.node(path, i)] as number;
        this.#context.add(token, position + 1 + i, stream, true);
        sequence.rowCount += 1;
      }
    }
  }

  #addPrefillRows(sequence: Sequence, left: number): number {
    const from = sequence.computed;
    const to = Math.min(sequence.length, from + left);
    for (let position = from; position < to; position += 1) {
      const token = sequence.tokens[position] as number;
      const last = position + 1 === sequence.length;
      sequence.firstRow = this.#context.add(token, position, sequence.stream, last);
    }
    sequence.rowCount = to - from;
    this.#counts.prefillTokens += to - from;
    const again = Math.min(to, sequence.computedBefore) - from;
    this.#counts.recomputedTokens += Math.max(0, again);
    return to - from;
  }

  /** KV tokens resident while the collected rows are computed. */
  #residentInStep(): number {
    let tokens = this.#resident() + this.#context.rows;
    for (const sequence of this.#decoding) {
      const branches = sequence.pathTo - sequence.pathFrom - 1;
      if (branches > 0) tokens += branches * sequence.computed;
    }
    return tokens;
  }

  #readRows(): void {
    let kept = 0;
    for (let i = 0; i < this.#running.length; i += 1) {
      const sequence = this.#running[i] as Sequence;
      const finish = this.#readSequence(sequence);
      if (finish !== null) {
        this.#finish(sequence, finish);
      } else if (sequence.length === sequence.chunkEnd) {
        this.#park(sequence);
      } else {
        this.#running[kept] = sequence;
        kept += 1;
      }
    }
    this.#running.length = kept;
  }

  #readSequence(sequence: Sequence): FinishReason | null {
    if (sequence.rowCount === 0) return null;
    const decoded = sequence.computed + 1 === sequence.length;
    if (!decoded) {
      sequence.computed += sequence.rowCount;
      if (sequence.pending > 0) return null;
    }
    if (sequence.sent === sequence.length) this.#unsent.add(sequence);
    const from = sequence.length;
    const finish =
      sequence.pathFrom < sequence.pathTo ? this.#verify(sequence) : this.#drawOne(sequence);
    this.#counts.outputTokens += sequence.length - from;
    this.#groups?.append(sequence, from);
    this.#speculation?.settleShadow(sequence);
    return finish;
  }

  #drawOne(sequence: Sequence): FinishReason | null {
    sequence.computed = sequence.length;
    return this.#draw(sequence, sequence.firstRow);
  }

  /** Draws the next token from a row of logits; not null: it ended the response. */
  #draw(sequence: Sequence, row: number): FinishReason | null {
    const { sampling } = sequence.spec;
    this.#context.copyLogits(row, this.#sampler.rowPointer);
    const u = sampling.temperature > 0 ? uniformAt(sequence.key, sequence.outputLength) : 0;
    const token = this.#sampler.draw(sampling.temperature, u);
    sequence.append(token, this.#sampler.logprob);
    if (sampling.stopTokenIds.includes(token)) return "stop";
    return sequence.outputLength >= sampling.tokensMax ? "length" : null;
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
    speculation.acceptedTokens += accepted;
    speculation.observe(sequence, acceptedOnFirst, finish !== null);
    sequence.computed = from + accepted;
    this.#commitPath(sequence, path);
    return finish;
  }

  /** Makes the stream of `path` the sequence's, cut to what was accepted, and frees the other branches. */
  #commitPath(sequence: Sequence, path: number): void {
    const { paths } = this.#speculating();
    for (let other = sequence.pathFrom; other < sequence.pathTo; other += 1) {
      if (other !== path) this.#residency.releaseBranch(paths.streams[other] as number);
    }
    sequence.stream = paths.streams[path] as number;
    this.#residency.truncate(sequence, sequence.computed);
  }

  #speculating(): Speculation {
    assert(this.#speculation !== null, "only an engine with a drafter has drafts");
    return this.#speculation;
  }

  #finish(sequence: Sequence, finish: FinishReason): void {
    const { requestId } = sequence.spec;
    this.#sendTokens(sequence);
    this.#residency.drop(sequence);
    this.#all.delete(requestId);
    this.#push({ kind: "chunk_done", requestId, finish });
  }

  #park(sequence: Sequence): void {
    this.#sendTokens(sequence);
    sequence.shadow = null;
    this.#parked.add(sequence);
    this.#residency.setIdle(sequence);
    const { requestId } = sequence.spec;
    this.#push({ kind: "chunk_done", requestId, finish: null });
  }

  #sendTokens(sequence: Sequence): void {
    if (!this.#unsent.delete(sequence)) return;
    const { sent, length, chunkStart, promptLength } = sequence;
    this.#events.push({
      kind: "tokens",
      requestId: sequence.spec.requestId,
      offset: sent - promptLength,
      tokens: sequence.tokens.slice(sent, length),
      logprobs: sequence.logprobs.slice(sent - chunkStart, length - chunkStart),
    });
    sequence.sent = length;
  }

  #push(event: WorkerEvent): void {
    this.#events.push(event);
    this.#urgent = true;
  }
}

function checkOptions(options: EngineOptions): void {
  const { slots, kvTokens, contextTokens, model } = options;
  const problem =
    !Number.isInteger(slots) || slots < 1 || slots > SLOTS_MAX
      ? `slots is ${slots}, not in 1..${SLOTS_MAX}`
      : !Number.isInteger(kvTokens) || kvTokens < 1
        ? `kvTokens is ${kvTokens}, not a positive integer`
        : !Number.isInteger(contextTokens) ||
            contextTokens < 2 ||
            contextTokens > model.info.contextTokens
          ? `contextTokens is ${contextTokens}, not in 2..${model.info.contextTokens} (the model's)`
          : null;
  if (problem !== null) throw new AppError("invalid_config", `embedded engine: ${problem}`);
}

function refused(name: string, problem: string): AppError {
  return new AppError("worker_failed", `${name} can never run here: it ${problem}`);
}

function remove(list: Sequence[], sequence: Sequence): void {
  const index = list.indexOf(sequence);
  if (index >= 0) list.splice(index, 1);
}
