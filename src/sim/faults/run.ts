// One run of the fault tests: the production rollout against simulated workers behind faulty links, in virtual time, with
// checkers after every event. It reports the first violation and repairs nothing.

import { assert, present } from "../../base/assert.ts";
import { fold32, hashString } from "../../base/hash.ts";
import { groupId, weightEpoch, workerId } from "../../base/ids.ts";
import { Random } from "../../base/random.ts";
import type { KvKey, KvPool, KvPoolStats } from "../../kv/pool.ts";
import type { Group, Request } from "../../request/buffer.ts";
import { SAMPLING_DEFAULTS } from "../../request/request.ts";
import type { RolloutListener } from "../../rollout/listener.ts";
import { Rollout } from "../../rollout/rollout.ts";
import type { CoreExports } from "../../wasm/load.ts";
import { SimulatedWorker, simulatedToken } from "../../worker/simulated/worker.ts";
import { Timeline } from "../timeline.ts";
import { FaultyLink } from "./link.ts";
import { FAULT_PROMPT_MAX, FAULT_TOKENS_MAX, type Fault, type FaultPlan } from "./plan.ts";

/** crash: the rollout threw. stuck: no new token for too long. wrong: a checker objected. */
export type FaultOutcome =
  | { readonly kind: "ok"; readonly hash: number; readonly events: number; readonly endMs: number }
  | { readonly kind: "crash" | "stuck" | "wrong"; readonly message: string; readonly atMs: number };

/** Without faults, a token comes in every step of a few ms; a link is given up after 40 ms, and a slow one takes 60. */
const STUCK_MS = 2000;
const EVENTS_MAX = 200_000;
/** Turns of the microtask queue that a read of the pool takes, and some more. */
const SETTLE_TURNS = 6;

export async function runFaultPlan(plan: FaultPlan, core: CoreExports): Promise<FaultOutcome> {
  const world = new FaultWorld(plan, core);
  return world.run();
}

class Wrong extends Error {}

class FaultWorld implements RolloutListener {
  readonly timeline = new Timeline<() => void>();
  readonly #plan: FaultPlan;
  readonly #random: Random;
  readonly #rollout: Rollout;
  readonly #pool: VolatilePool;
  readonly #links: FaultyLink[] = [];
  readonly #received = new Map<Request, number>();
  readonly #finished = new Set<Request>();
  readonly #groupsFinished = new Set<Group>();
  #groups: Group[] = [];
  #nowMs = 0;
  #lastTokenMs = 0;
  #hash = 0;
  #broken: unknown = null;

  constructor(plan: FaultPlan, core: CoreExports) {
    this.#plan = plan;
    this.#random = new Random(plan.seed, "steps");
    this.#pool = new VolatilePool(plan.poolBytes);
    this.#rollout = new Rollout({
      policy: plan.policy,
      draft: plan.draft,
      chunkTokens: plan.chunkTokens,
      epoch: weightEpoch(0),
      pool: this.#pool,
      clock: this,
      core,
      listener: this,
      later: (act, ms) => {
        this.timeline.add(this.#nowMs + ms, act);
        return () => {};
      },
    });
  }

  nowMs(): number {
    return this.#nowMs;
  }

  async run(): Promise<FaultOutcome> {
    let events = 0;
    try {
      this.#begin();
      while (this.#rollout.unfinished > 0) {
        const atMs = this.timeline.nextMs;
        assert(Number.isFinite(atMs), "workers step as long as work is left");
        this.#nowMs = atMs;
        this.timeline.take()?.();
        events += 1;
        await settle();
        if (this.#broken !== null) throw this.#broken;
        this.#check();
        if (this.#nowMs - this.#lastTokenMs > STUCK_MS || events > EVENTS_MAX) {
          const message = `no new token for ${this.#nowMs - this.#lastTokenMs} ms`;
          return { kind: "stuck", message, atMs: this.#nowMs };
        }
      }
      this.#checkEnd();
    } catch (error) {
      const message = error instanceof Error ? error.message : String(error);
      return { kind: error instanceof Wrong ? "wrong" : "crash", message, atMs: this.#nowMs };
    } finally {
      this.#rollout.stop();
    }
    return { kind: "ok", hash: this.#hash, events, endMs: this.#nowMs };
  }

  #begin(): void {
    const plan = this.#plan;
    for (let i = 0; i < plan.workers; i += 1) this.#join();
    for (const { atMs, fault } of plan.faults) this.timeline.add(atMs, () => this.#inflict(fault));
    this.timeline.add(plan.healMs, () => this.#heal());
    this.#groups = plan.groupSizes.map((size, i) =>
      this.#rollout.submit({
        groupId: groupId(`g${i}`),
        prompt: Int32Array.from({ length: 1 + (i % FAULT_PROMPT_MAX) }, (_, k) => k),
        size,
        sampling: {
          temperature: 1,
          seed: 1,
          tokensMax: FAULT_TOKENS_MAX,
          stopTokenIds: [],
          ...SAMPLING_DEFAULTS,
        },
      }),
    );
  }

  #join(): void {
    const worker = new SimulatedWorker({
      workerId: workerId(this.#links.length),
      capacity: {
        slots: this.#plan.slots,
        kvTokens: this.#plan.kvTokens,
        contextTokens: FAULT_TOKENS_MAX + FAULT_PROMPT_MAX,
        kvBytesPerToken: 8,
      },
      epoch: weightEpoch(0),
      lengthOf: ({ requestId }) => this.#lengthOf(requestId),
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
    if (fault.kind === "join") this.#join();
    else if (fault.kind === "pool_lost") this.#pool.lose();
    else this.#inflictOn(this.#links[fault.worker], fault);
  }

  #inflictOn(link: FaultyLink | undefined, fault: Fault): void {
    if (link === undefined) return;
    switch (fault.kind) {
      case "kill":
        link.inner.kill();
        break;
      case "slow":
        link.slow(fault.latencyMs);
        break;
      case "cut":
        link.cut();
        break;
      case "lose":
        link.lose(fault.direction);
        break;
      case "repeat":
        link.repeat();
        break;
      case "evict":
        link.inner.evictOne();
        break;
      case "drafts_lost":
        link.forgetDrafts(
          this.#groups.flatMap((group) => group.requests.map((request) => request.spec)),
        );
        break;
      default:
        break;
    }
  }

  #heal(): void {
    for (const link of this.#links) link.heal();
    this.#join();
    this.#lastTokenMs = this.#nowMs;
  }

  tokens(request: Request, offset: number): void {
    const received = this.#received.get(request) ?? 0;
    if (offset !== received)
      throw new Wrong(`${nameOf(request)}: token ${offset} after ${received}`);
    const fresh = request.response.tokens(offset);
    for (const [i, token] of fresh.entries()) {
      if (token !== simulatedToken(request.spec.requestId, offset + i)) {
        throw new Wrong(`${nameOf(request)}: token ${offset + i} is another request's`);
      }
      this.#hash = fold32(this.#hash, token);
    }
    this.#received.set(request, received + fresh.length);
    this.#lastTokenMs = this.#nowMs;
  }

  finished(request: Request): void {
    if (this.#finished.has(request)) throw new Wrong(`${nameOf(request)} finished twice`);
    this.#finished.add(request);
    this.#hash = fold32(this.#hash, request.spec.requestId);
    this.#lastTokenMs = this.#nowMs;
  }

  groupFinished(group: Group): void {
    if (this.#groupsFinished.has(group)) throw new Wrong(`${group.groupId} finished twice`);
    this.#groupsFinished.add(group);
  }

  restarted(request: Request): void {
    throw new Wrong(`${nameOf(request)} restarted, although it can be divided`);
  }

  stats(): void {}

  workerFailed(): void {}

  quarantined(request: Request): void {
    throw new Wrong(`${nameOf(request)} was given up: ${request.response.refusal?.message}`);
  }

  threw(error: unknown): void {
    this.#broken = error;
  }

  broken(error: unknown): void {
    this.#broken = error;
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
        const wanted = this.#lengthOf(request.spec.requestId);
        const made = this.#received.get(request) ?? 0;
        if (made !== wanted || request.response.length !== wanted) {
          throw new Wrong(`${nameOf(request)} has ${made} tokens in place of ${wanted}`);
        }
        const inChunks = request.response.chunks.reduce((sum, chunk) => sum + chunk.tokens, 0);
        if (inChunks !== wanted)
          throw new Wrong(`${nameOf(request)}: its chunks add up to ${inChunks}`);
      }
    }
  }

  #lengthOf(id: number): number {
    const drawn = 1 + (fold32(this.#plan.lengthSeed, id) % (FAULT_TOKENS_MAX + 10));
    return Math.min(FAULT_TOKENS_MAX, drawn);
  }
}

const nameOf = (request: Request): string =>
  `${request.group.groupId}, response ${request.spec.sampleIndex}`;

/** Lets promises that have resolved run their continuations: reads of the pool. */
async function settle(): Promise<void> {
  for (let i = 0; i < SETTLE_TURNS; i += 1) await Promise.resolve();
}

/** A KV pool in memory that may lose everything at any time; leases keep nothing. */
class VolatilePool implements KvPool {
  readonly #bytesMax: number;
  readonly #blobs = new Map<KvKey, ArrayBuffer>();
  #bytes = 0;
  #counters = { puts: 0, hits: 0, misses: 0, evictions: 0 };

  constructor(bytesMax: number) {
    this.#bytesMax = bytesMax;
  }

  put(key: KvKey, bytes: ArrayBuffer): boolean {
    if (this.#blobs.has(key)) return true;
    if (this.#bytes + bytes.byteLength > this.#bytesMax) return false;
    this.#blobs.set(key, bytes);
    this.#bytes += bytes.byteLength;
    this.#counters.puts += 1;
    return true;
  }

  async get(key: KvKey): Promise<ArrayBuffer | null> {
    const blob = this.#blobs.get(key);
    if (blob === undefined) this.#counters.misses += 1;
    else this.#counters.hits += 1;
    return blob ?? null;
  }

  lease(key: KvKey): boolean {
    return this.#blobs.has(key);
  }

  release(keys: readonly KvKey[]): void {
    for (const key of keys) {
      if (!this.#blobs.has(key)) continue;
      this.#bytes -= present(this.#blobs.get(key), "it is there").byteLength;
      this.#blobs.delete(key);
    }
  }

  lose(): void {
    this.#counters.evictions += this.#blobs.size;
    this.#blobs.clear();
    this.#bytes = 0;
  }

  stats(): KvPoolStats {
    return {
      memoryBytes: this.#bytes,
      diskBytes: 0,
      corrupt: 0,
      diskErrors: 0,
      ...this.#counters,
    };
  }

  async close(): Promise<void> {
    this.lose();
  }
}
