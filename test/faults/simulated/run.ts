// A whole sidecar in virtual time: the production server from its HTTP handlers down, with journals, sessions and pool, over
// simulated engine servers that fail, and a trainer that speaks its protocols. It reports the first violation: a token that
// is not what its weights draw, a call that nobody answers, an error that is the server's own.

import { OperatorFeed } from "../../../src/compose/operator-log.ts";
import type { RunningServer } from "../../../src/compose/options.ts";
import { listening, serveOver } from "../../../src/compose/server.ts";
import { composeSidecar } from "../../../src/compose/sidecar.ts";
import { present } from "../../../src/core/base/assert.ts";
import { fold32 } from "../../../src/core/base/hash.ts";
import type { KvKey } from "../../../src/core/kv/pool.ts";
import type { Group, RolloutRequest } from "../../../src/core/request/buffer.ts";
import { EmbeddedKvPool } from "../../../src/host/embedded-pool.ts";
import type { SidecarReader } from "../../../src/server/sidecar.ts";
import { type EngineAddress, WorkerRegistry } from "../../../src/server/worker-registry.ts";
import { Random } from "../../suite/random.ts";
import { serveOptions } from "../../suite/serve-fixture.ts";
import { EngineServer } from "./engine-server.ts";
import { MemoryDisk } from "./memory-journals.ts";
import {
  type EngineFault,
  FAULTS_MS,
  SIDECAR_CONTEXT_MAX,
  type SidecarFault,
  type SidecarPlan,
} from "./plan.ts";
import { Lost, SimulatedTrainer, type TrainedSidecar, WEIGHTS_MS_MAX, Wrong } from "./trainer.ts";
import { VirtualTime } from "./virtual-time.ts";

/** crash: the server threw. stuck: a call is not answered. wrong: a checker objected. */
export type FaultOutcome =
  | { readonly kind: "ok"; readonly hash: number; readonly events: number; readonly endMs: number }
  | { readonly kind: "crash" | "stuck" | "wrong"; readonly message: string; readonly atMs: number };

type Handle = (request: Request, server: object) => Promise<Response>;

/** A call that is open for so long after the last fault is never answered. */
const STUCK_MS = 60_000;
/** Time after which something has to say what a call waits for. */
const NAMED_MS = 3_000;
const LOOK_MS = 500;
const EVENTS_MAX = 400_000;
/** A read of the KV pool takes less. */
const READ_MS = 8;
const UNCONNECTED = { timeout: () => {}, requestIP: () => null, upgrade: () => false };

export async function runSidecarPlan(plan: SidecarPlan): Promise<FaultOutcome> {
  const time = new VirtualTime();
  time.begin();
  try {
    return await new SidecarWorld(plan, time).run();
  } finally {
    time.end();
  }
}

/** The KV pool, which reads as slowly as a disk and may lose everything at any time. */
class VolatilePool extends EmbeddedKvPool {
  readonly #keys = new Set<KvKey>();
  readonly #read: () => Promise<void>;

  constructor(memoryBytesMax: number, read: () => Promise<void>) {
    super({ memoryBytesMax, disk: null });
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

class SidecarWorld implements TrainedSidecar {
  readonly time: VirtualTime;
  readonly plan: SidecarPlan;
  readonly engines: EngineServer[];
  readonly #disk = new MemoryDisk();
  readonly #reads: Random;
  readonly #trainer: SimulatedTrainer;
  /** Number of the sidecar that lives. */
  #number = 0;
  #server: { running: RunningServer; handle: Handle };
  #lost = Promise.withResolvers<never>();
  #pool: VolatilePool | null = null;
  /** Tokens of the requests that the present sidecar has. */
  #received = new Map<RolloutRequest, number>();
  #hash = 0;
  #problem: { kind: "wrong" | "stuck" | "crash"; message: string } | null = null;
  #lookMs = 0;

  constructor(plan: SidecarPlan, time: VirtualTime) {
    this.plan = plan;
    this.time = time;
    const random = new Random(plan.seed, "engines");
    this.#reads = new Random(plan.seed, "reads");
    const context = { contextTokens: SIDECAR_CONTEXT_MAX, kvBytesPerToken: 8 };
    this.engines = plan.engines.map((own, i) => {
      const capacity = { ...own, ...context };
      const { hasCanary } = plan;
      return new EngineServer(`http://e${i}:1`, { time, random, capacity, hasCanary });
    });
    this.#server = this.#started(0);
    this.#trainer = new SimulatedTrainer(this);
  }

  /** Output tokens that sidecars have taken in. */
  made = 0;

  get isFaulty(): boolean {
    return this.plan.faults.length > 0;
  }

  async run(): Promise<FaultOutcome> {
    let isOver = false;
    let events = 0;
    const end = (error?: unknown) => {
      if (error !== undefined) this.#fail(error instanceof Wrong ? "wrong" : "crash", error);
      isOver = true;
    };
    for (const { atMs, fault } of this.plan.faults) {
      this.time.after(atMs, () => this.#inflict(fault));
    }
    this.#trainer.train().then(() => end(), end);
    while (!isOver && this.#problem === null) {
      const isDue = await this.time.next().catch((error) => this.#fail("crash", error));
      events += 1;
      if (isDue === false || events > EVENTS_MAX)
        this.#fail("stuck", "nothing is due, or too much");
      this.#check();
    }
    const { nowMs: atMs } = this.time;
    this.#server.running.sidecar.rollout.stop();
    if (this.#problem !== null) return { ...this.#problem, atMs };
    return { kind: "ok", hash: this.#hash, events, endMs: atMs };
  }

  /** @throws Lost: the sidecar died before it had answered. `piece`: called with what has come of the answer. */
  async call(
    request: { method: string; path: string; body: unknown },
    piece: (text: string) => void = () => {},
  ): Promise<{ status: number; text: string }> {
    const { method, path, body } = request;
    const init = { method, body: body === null ? null : JSON.stringify(body) };
    const lost = this.#lost.promise;
    const { handle } = this.#server;
    const answered = async () => {
      const answer = await handle(new Request(`http://127.0.0.1${path}`, init), UNCONNECTED);
      const reader = answer.body?.getReader();
      let text = "";
      for (let part = await reader?.read(); part?.done === false; part = await reader?.read()) {
        text += new TextDecoder().decode(part.value);
        piece(text);
      }
      return { status: answer.status, text };
    };
    return await Promise.race([answered(), lost]);
  }

  /** Ends the server in order. @throws Wrong: engines hold KV although nothing is left. */
  async drain(): Promise<void> {
    const { running } = this.#server;
    await running.drain();
    await this.time.sleep(LOOK_MS);
    const held = this.engines.reduce((sum, { link }) => sum + (link?.inner.kvTokensUsed ?? 0), 0);
    if (held > 0) throw new Wrong(`engines hold ${held} tokens of KV although nothing is left`);
  }

  #started(number: number): { running: RunningServer; handle: Handle } {
    const { plan } = this;
    const failed = (error: unknown) => {
      if (number === this.#number) this.#fail("crash", error);
    };
    const sources = this.engines.map((engine) => ({
      name: engine.name,
      keepsWeights: true,
      open: async (options: Parameters<EngineServer["open"]>[0]) => {
        const isAlive = () => number === this.#number;
        return isAlive() ? await engine.open(options, isAlive) : await new Promise<never>(() => {});
      },
    }));
    const options = serveOptions({
      ...{ sources, policy: plan.policy, chunkTokens: plan.chunkTokens, draft: plan.draft },
      ...{ retryGraceMs: 2_000, weightsTimeoutMs: WEIGHTS_MS_MAX },
      model: { openTextThread: null },
      events: { failed, broken: failed },
    });
    const { serve } = Bun;
    let handle: Handle | null = null;
    Bun.serve = ((given: { fetch: Handle }) => {
      handle = given.fetch;
      return { url: new URL("http://127.0.0.1:1"), stop: async () => {} };
    }) as unknown as typeof serve;
    try {
      this.#pool = new VolatilePool(plan.poolBytes, () =>
        this.time.sleep(this.#reads.below(READ_MS)),
      );
      const http = listening(options, { routes: [], sockets: {}, answered() {}, failed });
      const sourceOf = ({ url }: EngineAddress) =>
        present(
          sources.find(({ name }) => name === url),
          "an engine of the plan",
        );
      const registry = new WorkerRegistry({ sourceOf, hasFixed: true, drainMs: 0 });
      const composed = composeSidecar(options, {
        kv: this.#pool,
        feed: new OperatorFeed(options.events),
        front: { registry, bodyWait: () => http.bodyWait() },
        history: null,
        journals: this.#disk.open(),
      });
      const running = serveOver(http, composed, options);
      this.#received = new Map();
      running.sidecar.observe(this.#checked());
      return { running, handle: handle as unknown as Handle };
    } finally {
      Bun.serve = serve;
    }
  }

  /** Every token comes once and in order, and every end once. */
  #checked(): SidecarReader {
    const wrong = ({ group, spec }: RolloutRequest, what: string) =>
      this.#fail("wrong", `${group.groupId}, response ${spec.sampleIndex}: ${what}`);
    const finished = new Set<RolloutRequest | Group>();
    return {
      tokens: (request, offset) => {
        const received = this.#received.get(request) ?? offset;
        if (offset !== received) wrong(request, `token ${offset} after ${received}`);
        const { length } = request.response;
        this.made += length - offset;
        this.#hash = fold32(fold32(this.#hash, request.spec.requestId), length);
        this.#received.set(request, length);
      },
      finished: (request) => {
        if (finished.has(request)) wrong(request, "it finished twice");
        finished.add(request);
        this.#received.delete(request);
      },
      groupFinished: (group) => {
        if (finished.has(group)) this.#fail("wrong", `${group.groupId} finished twice`);
        finished.add(group);
      },
      restarted: (request) => {
        this.#received.set(request, 0);
      },
    };
  }

  #inflict(fault: SidecarFault): void {
    if (fault.kind === "sidecar_killed") this.#restart(fault);
    else if (fault.kind === "pool_lost") this.#pool?.lose();
    else if (fault.kind === "disk_full") this.#disk.fill();
    else this.#inflictOn(fault);
  }

  #inflictOn(fault: EngineFault): void {
    const engine = this.engines[fault.engine];
    if (engine === undefined) return;
    if (fault.kind === "kill") engine.kill(fault.ms);
    else if (fault.kind === "stop") engine.stop(fault.ms);
    else if (fault.kind === "control") engine.controlFault = fault.fault;
    else if (fault.kind === "cut") engine.link?.cut();
    else if (fault.kind === "lose") engine.link?.lose(fault.direction);
    else if (fault.kind === "repeat") engine.link?.repeat();
    else if (fault.kind === "slow") engine.link?.slow(fault.ms);
    else if (fault.kind === "evict") engine.link?.inner.evictOne();
    else engine.link?.forgetDrafts([...this.#received.keys()].map(({ spec }) => spec));
  }

  #restart({ share, engine }: Extract<SidecarFault, { kind: "sidecar_killed" }>): void {
    const { running } = this.#server;
    running.sidecar.rollout.stop();
    this.#disk.tear(share);
    this.time.abandon();
    for (const { link } of this.engines) link?.drop();
    if (engine !== null) this.engines[engine]?.kill(0);
    const lost = this.#lost;
    this.#lost = Promise.withResolvers();
    this.#lost.promise.catch(() => {});
    lost.promise.catch(() => {});
    this.#number += 1;
    this.#server = this.#started(this.#number);
    this.#trainer.sidecarLost();
    lost.reject(new Lost());
  }

  #check(): void {
    for (const { name, link } of this.engines) {
      if (link === null || link.isGone) continue;
      const { kvTokensUsed, capacity } = link.inner;
      if (kvTokensUsed > capacity.kvTokens)
        this.#fail("wrong", `${name} has ${kvTokensUsed} of KV`);
    }
    const quiet = this.#trainer.quiet;
    if (quiet !== null && this.made > quiet.made) {
      this.#fail("wrong", `${this.made - quiet.made} tokens ${quiet.during}`);
    }
    const { nowMs } = this.time;
    if (nowMs < this.#lookMs) return;
    this.#lookMs = nowMs + LOOK_MS;
    for (const call of this.#trainer.open) {
      const ms = nowMs - Math.max(call.sinceMs, this.isFaulty ? FAULTS_MS : 0);
      if (ms > STUCK_MS) this.#fail("stuck", `${call.what} is not answered for ${ms} ms`);
      else if (ms > NAMED_MS) void this.#named(call.what);
    }
  }

  /** Checks that something says what the call waits for. */
  async #named(what: string): Promise<void> {
    const calls = [...this.#trainer.open];
    const { text } = await this.call({ method: "GET", path: "/v1/waiting", body: null });
    const isOpen = calls.every((call) => this.#trainer.open.has(call));
    const { waiting } = JSON.parse(text) as { waiting?: unknown[] };
    if (isOpen && waiting?.length === 0) this.#fail("wrong", `nothing says what ${what} waits for`);
  }

  #fail(kind: "wrong" | "stuck" | "crash", problem: unknown): void {
    const message = problem instanceof Error ? problem.message : String(problem);
    this.#problem ??= { kind, message };
  }
}
