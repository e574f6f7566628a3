// One run of the fault tests: the production rollout against simulated workers behind faulty links, in virtual time, with
// checkers after every event. It reports the first violation and repairs nothing.

import { assert, present } from "../../../src/core/base/assert.ts";
import { fold32, hashString } from "../../../src/core/base/hash.ts";
import { groupId, type WeightEpoch, weightEpoch, workerId } from "../../../src/core/base/ids.ts";
import type { KvKey } from "../../../src/core/kv/pool.ts";
import type { Group, RolloutRequest } from "../../../src/core/request/buffer.ts";
import type { Chunk, SavedOutput } from "../../../src/core/request/response.ts";
import type { RolloutReader } from "../../../src/core/rollout/events.ts";
import { Rollout } from "../../../src/core/rollout/rollout.ts";
import type { CoreExports } from "../../../src/core/wasm/load.ts";
import { EmbeddedKvPool, type EmbeddedKvPoolOptions } from "../../../src/host/embedded-pool.ts";
import { Random } from "../../suite/random.ts";
import { samplingOf } from "../../suite/request-spec.ts";
import { FaultJournal } from "./journal.ts";
import { FaultyLink } from "./link.ts";
import { FAULT_PROMPT_MAX, FAULT_TOKENS_MAX, type Fault, type FaultPlan } from "./plan.ts";
import { Timeline } from "./timeline.ts";
import { SimulatedWorker, simulatedToken, type TokenOf } from "./worker.ts";

/** crash: the rollout threw. stuck: no new token for too long. wrong: a checker objected. */
export type FaultOutcome =
  | { readonly kind: "ok"; readonly hash: number; readonly events: number; readonly endMs: number }
  | { readonly kind: "crash" | "stuck" | "wrong"; readonly message: string; readonly atMs: number };

/**
 * Time without progress that counts as stuck. Without faults, a token comes in every step of a few ms; a link is given
 * up after 40 ms, and a slow one takes 60.
 */
const STUCK_MS = 2000;
const EVENTS_MAX = 200_000;
const STOP = 1_000_000;
/** A read of the KV pool takes less. */
const READ_MS = 8;
/** More than a group has responses. */
const STREAMS = 16;
/** Turns of the microtask queue that a read of the pool takes, and some more. */
const SETTLE_TURNS = 6;

export async function runFaultPlan(plan: FaultPlan, core: CoreExports): Promise<FaultOutcome> {
  const world = new FaultWorld(plan, core);
  return world.run();
}

class Wrong extends Error {}

/** The KV pool, which may lose everything at any time. */
class VolatilePool extends EmbeddedKvPool {
  readonly #keys = new Set<KvKey>();
  /** Waits for as long as a disk takes. */
  readonly #read: () => Promise<void>;

  constructor(options: EmbeddedKvPoolOptions, read: () => Promise<void>) {
    super(options);
    this.#read = read;
  }

  override async get(key: KvKey): Promise<ArrayBuffer | null> {
    await this.#read();
    return await super.get(key);
  }

  override put(key: KvKey, bytes: ArrayBuffer): boolean {
    this.#keys.add(key);
    return super.put(key, bytes);
  }

  lose(): void {
    this.release([...this.#keys]);
    this.#keys.clear();
  }
}

class FaultWorld implements RolloutReader {
  readonly timeline = new Timeline<() => void>();
  readonly #plan: FaultPlan;
  readonly #random: Random;
  readonly #core: CoreExports;
  readonly #pool: VolatilePool;
  readonly #journal = new FaultJournal();
  #rollout: Rollout;
  #epoch: WeightEpoch = weightEpoch(0);
  #links: FaultyLink[] = [];
  /** Streams of the responses that a client ended. */
  readonly #ended = new Set<number>();
  readonly #received = new Map<RolloutRequest, number>();
  readonly #finished = new Set<RolloutRequest>();
  readonly #groupsFinished = new Set<Group>();
  #groups: Group[] = [];
  #nowMs = 0;
  #lastTokenMs = 0;
  #hash = 0;
  #broken: unknown = null;

  constructor(plan: FaultPlan, core: CoreExports) {
    this.#plan = plan;
    this.#random = new Random(plan.seed, "steps");
    const read = () => {
      const ms = this.#random.below(READ_MS);
      return new Promise<void>((resolve) => this.timeline.add(this.#nowMs + ms, resolve));
    };
    const pool = { clock: this, memoryBytesMax: plan.poolBytes, disk: null };
    this.#pool = new VolatilePool(pool, read);
    this.#core = core;
    this.#rollout = this.#open();
  }

  nowMs(): number {
    return this.#nowMs;
  }

  async run(): Promise<FaultOutcome> {
    let events = 0;
    try {
      this.#begin();
      while (this.#rollout.unfinished > 0) {
        await this.#next();
        events += 1;
        if (this.#nowMs - this.#lastTokenMs > STUCK_MS || events > EVENTS_MAX) {
          const message = `no new token for ${this.#nowMs - this.#lastTokenMs} ms`;
          return { kind: "stuck", message, atMs: this.#nowMs };
        }
      }
      this.#checkEnd();
      const endMs = this.#nowMs + STUCK_MS;
      while (this.#kvTokensHeld() > 0) {
        await this.#next();
        if (this.#nowMs < endMs) continue;
        const message = `${this.#kvTokensHeld()} tokens of KV are held although nothing is left`;
        return { kind: "stuck", message, atMs: this.#nowMs };
      }
    } catch (error) {
      const message = error instanceof Error ? error.message : String(error);
      return { kind: error instanceof Wrong ? "wrong" : "crash", message, atMs: this.#nowMs };
    } finally {
      this.#rollout.stop();
    }
    return { kind: "ok", hash: this.#hash, events, endMs: this.#nowMs };
  }

  #open(): Rollout {
    return new Rollout({
      policy: this.#plan.policy,
      draft: this.#plan.draft,
      chunkTokens: this.#plan.chunkTokens,
      epoch: this.#epoch,
      pool: this.#pool,
      clock: this,
      core: this.#core,
      listener: this,
      later: (act, ms) => {
        this.timeline.add(this.#nowMs + ms, act);
        return () => {};
      },
    });
  }

  #begin(): void {
    const plan = this.#plan;
    this.#submit();
    for (let i = 0; i < plan.workers; i += 1) this.#join();
    this.#flushLater();
    for (const { atMs, fault } of plan.faults) this.timeline.add(atMs, () => this.#inflict(fault));
    this.timeline.add(plan.healMs, () => this.#heal());
  }

  /** All groups, with what the journal has of them. */
  #submit(): void {
    this.#groups = this.#plan.groups.map(({ size, divisible }, i) =>
      this.#rollout.submit({
        groupId: groupId(`g${i}`),
        prompt: Int32Array.from({ length: 1 + (i % FAULT_PROMPT_MAX) }, (_, k) => k),
        size,
        divisible,
        sampling: samplingOf({ seed: 1, tokensMax: FAULT_TOKENS_MAX, stopTokenIds: [STOP] }),
      }),
    );
    for (const group of this.#groups) for (const one of [...group.requests]) this.#restore(one);
  }

  #restore(request: RolloutRequest): void {
    const saved = this.#journal.saved(streamOf(request));
    if (saved !== null) this.#checkSaved(request, saved);
    const isResumed = saved !== null && this.#rollout.restore(request, saved);
    if (isResumed) this.#received.set(request, saved.tokens.length);
    if (!isResumed || saved.finish === null) {
      this.#journal.follow(request, streamOf(request), isResumed ? saved : null);
    }
  }

  #flushLater(): void {
    this.timeline.add(this.#nowMs + this.#plan.flushMs, () => {
      this.#journal.flush();
      this.#flushLater();
    });
  }

  #join(): void {
    const { capacities } = this.#plan;
    const capacity = present(capacities[this.#links.length % capacities.length], "there is one");
    const worker = new SimulatedWorker({
      workerId: workerId(this.#links.length),
      capacity: {
        ...capacity,
        contextTokens: FAULT_TOKENS_MAX + FAULT_PROMPT_MAX,
        kvBytesPerToken: 8,
      },
      epoch: this.#epoch,
      lengthOf: ({ requestId }) => this.#lengthOf(requestId),
      tokenOf: this.#tokenOf,
    });
    const link = new FaultyLink(worker, this, this.#random.below(3));
    this.#links.push(link);
    this.#rollout.addWorker(link);
    this.#stepLater(link);
  }

  #stepLater(link: FaultyLink): void {
    this.timeline.add(this.#nowMs + 1 + this.#random.below(3), () => {
      if (link.isGone) return;
      link.inner.step();
      this.#stepLater(link);
    });
  }

  #inflict(fault: Fault): void {
    this.#hash = hashString(fault.kind, this.#hash);
    const { kind } = fault;
    if (kind === "join") this.#join();
    else if (kind === "pool_lost") this.#pool.lose();
    else if (kind === "pause") this.#pause(fault.mode, fault.ms);
    else if (kind === "end") this.#end(fault.request, fault.reason);
    else if (kind === "disk_full") this.#journal.fill();
    else if (kind === "sidecar_killed") this.#restart();
    else if (kind === "advance") {
      this.#epoch = weightEpoch(this.#epoch + 1);
      this.#rollout.advance(this.#epoch);
    } else this.#inflictOn(this.#links[fault.worker], fault);
  }

  #pause(mode: "keep" | "wait", ms: number): void {
    const rollout = this.#rollout;
    void rollout.pause(mode).then((isPaused) => {
      if (isPaused) this.timeline.add(this.#nowMs + ms, () => rollout.resume());
    });
  }

  #end(index: number, reason: "abort" | "stop"): void {
    const requests = this.#groups.flatMap((group) => group.requests);
    const request = requests[index % requests.length];
    if (request === undefined) return;
    this.#ended.add(streamOf(request));
    this.#rollout.end(request, reason);
  }

  #restart(): void {
    this.#rollout.stop();
    for (const link of this.#links) link.drop();
    this.#links = [];
    this.#pool.lose();
    this.#received.clear();
    this.#finished.clear();
    this.#groupsFinished.clear();
    this.#journal.reopen(this.#random);
    this.#rollout = this.#open();
    this.#submit();
    for (let i = 0; i < this.#plan.workers; i += 1) this.#join();
  }

  #inflictOn(link: FaultyLink | undefined, fault: Fault): void {
    if (link === undefined) return;
    const { kind } = fault;
    if (kind === "kill") link.inner.kill();
    else if (kind === "slow") link.slow(fault.latencyMs);
    else if (kind === "cut") link.cut();
    else if (kind === "lose") link.lose(fault.direction);
    else if (kind === "repeat") link.repeat();
    else if (kind === "evict") link.inner.evictOne();
    else if (kind === "drafts_lost") {
      const requests = this.#groups.flatMap((group) => group.requests);
      link.forgetDrafts(requests.map((request) => request.spec));
    }
  }

  #heal(): void {
    for (const link of this.#links) link.heal();
    this.#join();
    this.#lastTokenMs = this.#nowMs;
  }

  tokens(request: RolloutRequest, offset: number): void {
    const received = this.#received.get(request) ?? 0;
    if (offset !== received)
      throw new Wrong(`${nameOf(request)}: token ${offset} after ${received}`);
    const fresh = request.response.tokens(offset);
    for (const [i, token] of fresh.entries()) {
      if (!this.#isRight(request, offset + i, token, request.response.chunks)) {
        throw new Wrong(`${nameOf(request)}: token ${offset + i} is another request's or epoch's`);
      }
      this.#hash = fold32(this.#hash, token);
    }
    this.#received.set(request, received + fresh.length);
    this.#journal.changed(request);
    this.#lastTokenMs = this.#nowMs;
  }

  finished(request: RolloutRequest): void {
    if (this.#finished.has(request)) throw new Wrong(`${nameOf(request)} finished twice`);
    this.#finished.add(request);
    this.#journal.finished(request);
    this.#hash = fold32(this.#hash, request.spec.requestId);
    this.#lastTokenMs = this.#nowMs;
  }

  groupFinished(group: Group): void {
    if (this.#groupsFinished.has(group)) throw new Wrong(`${group.groupId} finished twice`);
    this.#groupsFinished.add(group);
  }

  restarted(request: RolloutRequest): void {
    if (request.spec.divisible) {
      throw new Wrong(`${nameOf(request)} restarted, although it can be divided`);
    }
    this.#received.set(request, 0);
    this.#journal.changed(request);
  }

  stats(): void {}

  workerFailed(): void {}

  quarantined(request: RolloutRequest): void {
    throw new Wrong(`${nameOf(request)} was given up: ${request.response.refusal?.message}`);
  }

  threw(error: unknown): void {
    this.#broken = error;
  }

  broken(error: unknown): void {
    this.#broken = error;
  }

  async #next(): Promise<void> {
    const atMs = this.timeline.nextMs;
    assert(Number.isFinite(atMs), "workers step as long as work is left or KV is held");
    this.#nowMs = atMs;
    this.timeline.take()?.();
    await settle();
    if (this.#broken !== null) throw this.#broken;
    this.#check();
  }

  #kvTokensHeld(): number {
    const there = this.#links.filter(({ isGone }) => !isGone);
    return there.reduce((sum, { inner }) => sum + inner.kvTokensUsed, 0);
  }

  #check(): void {
    for (const { inner, isGone } of this.#links) {
      if (!isGone && inner.kvTokensUsed > inner.capacity.kvTokens) {
        throw new Wrong(
          `${inner.name} holds ${inner.kvTokensUsed} tokens of KV, beyond its budget`,
        );
      }
    }
  }

  #checkEnd(): void {
    for (const group of this.#groups) {
      if (!this.#groupsFinished.has(group)) throw new Wrong(`${group.groupId} was not handed out`);
      for (const request of group.requests) {
        const made = this.#received.get(request) ?? 0;
        const isEnded = this.#ended.has(streamOf(request));
        const wanted = isEnded ? request.response.length : this.#lengthOf(request.spec.requestId);
        if (made !== wanted || request.response.length !== wanted) {
          throw new Wrong(`${nameOf(request)} has ${made} tokens in place of ${wanted}`);
        }
        const inChunks = request.response.chunks.reduce((sum, chunk) => sum + chunk.tokens, 0);
        if (inChunks !== wanted)
          throw new Wrong(`${nameOf(request)}: its chunks add up to ${inChunks}`);
      }
    }
  }

  /** Other weights draw other tokens, so that a mixture is seen. A response that ends before its bound ends with a stop token. */
  readonly #tokenOf: TokenOf = ({ requestId }, position, epoch) => {
    const isLast = position + 1 === this.#lengthOf(requestId) && position + 1 < FAULT_TOKENS_MAX;
    return isLast ? STOP : simulatedToken(requestId, position + 1000 * epoch);
  };

  /** The token of this request and position under the weights of the chunk that it is in. */
  #isRight(
    { spec }: RolloutRequest,
    position: number,
    token: number,
    chunks: readonly Omit<Chunk, "tokens">[],
  ): boolean {
    const chunk = chunks.findLast(({ offset }) => offset <= position);
    return chunk !== undefined && token === this.#tokenOf(spec, position, chunk.epoch);
  }

  #checkSaved(request: RolloutRequest, { tokens, chunks }: SavedOutput): void {
    for (const [i, token] of tokens.entries()) {
      if (!this.#isRight(request, i, token, chunks)) {
        throw new Wrong(`${nameOf(request)}: token ${i} of the journal is another's`);
      }
    }
  }

  #lengthOf(id: number): number {
    const drawn = 1 + (fold32(this.#plan.lengthSeed, id) % (FAULT_TOKENS_MAX + 10));
    return Math.min(FAULT_TOKENS_MAX, drawn);
  }
}

/** Number of a response's stream in the journal. */
const streamOf = ({ spec, group }: RolloutRequest): number =>
  Number(group.groupId.slice(1)) * STREAMS + spec.sampleIndex;

const nameOf = (request: RolloutRequest): string =>
  `${request.group.groupId}, response ${request.spec.sampleIndex}`;

/** Lets promises that have resolved run their continuations: reads of the pool. */
async function settle(): Promise<void> {
  for (let i = 0; i < SETTLE_TURNS; i += 1) await Promise.resolve();
}
