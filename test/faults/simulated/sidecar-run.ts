// A whole sidecar in virtual time: the production server from its HTTP handlers down, with journals, sessions and pool, over
// simulated engine servers that fail, and a trainer that speaks its protocols. It reports the first violation: a token that
// is not what its weights draw, a call that nobody answers, an error that is the server's own.

import { OperatorFeed } from "../../../src/compose/operator-log.ts";
import type { RunningServer } from "../../../src/compose/options.ts";
import { listening, serveOver } from "../../../src/compose/server.ts";
import { composeSidecar } from "../../../src/compose/sidecar.ts";
import { present } from "../../../src/core/base/assert.ts";
import { EmbeddedKvPool } from "../../../src/host/embedded-pool.ts";
import { wallClock } from "../../../src/host/system.ts";
import { type EngineAddress, WorkerRegistry } from "../../../src/server/worker-registry.ts";
import { Random } from "../../suite/random.ts";
import { serveOptions } from "../../suite/serve-fixture.ts";
import { EngineServer } from "./engine-server.ts";
import { MemoryDisk } from "./memory-journals.ts";
import type { FaultOutcome } from "./run.ts";
import {
  FAULTS_MS,
  SIDECAR_CONTEXT_MAX,
  type SidecarFault,
  type SidecarPlan,
} from "./sidecar-plan.ts";
import {
  Lost,
  SimulatedTrainer,
  type TrainedSidecar,
  WEIGHTS_MS_MAX,
  Wrong,
} from "./sidecar-trainer.ts";
import { VirtualTime } from "./virtual-time.ts";

type Handle = (request: Request, server: object) => Promise<Response>;

/** A call that is open for so long after the last fault is never answered. */
const STUCK_MS = 60_000;
/** Time after which something has to say what a call waits for. */
const NAMED_MS = 3_000;
const LOOK_MS = 500;
const EVENTS_MAX = 400_000;
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

class SidecarWorld implements TrainedSidecar {
  readonly time: VirtualTime;
  readonly plan: SidecarPlan;
  readonly engines: EngineServer[];
  readonly #disk = new MemoryDisk();
  readonly #trainer: SimulatedTrainer;
  /** Number of the sidecar that lives. */
  #number = 0;
  #server: { running: RunningServer; handle: Handle };
  #lost = Promise.withResolvers<never>();
  #problem: { kind: "wrong" | "stuck" | "crash"; message: string } | null = null;
  #lookMs = 0;

  constructor(plan: SidecarPlan, time: VirtualTime) {
    this.plan = plan;
    this.time = time;
    const random = new Random(plan.seed, "engines");
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
      const isDue = await this.time.next();
      events += 1;
      if (!isDue || events > EVENTS_MAX) this.#fail("stuck", "nothing is due, or too much");
      this.#check();
    }
    const { nowMs: atMs } = this.time;
    this.#server.running.sidecar.rollout.stop();
    if (this.#problem !== null) return { ...this.#problem, atMs };
    return { kind: "ok", hash: this.made, events, endMs: atMs };
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
      ...{ sources, policy: plan.policy, chunkTokens: plan.chunkTokens, draft: "off" },
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
      const kv = { clock: wallClock, memoryBytesMax: plan.poolBytes, disk: null };
      const http = listening(options, { routes: [], sockets: {}, answered() {}, failed });
      const sourceOf = ({ url }: EngineAddress) =>
        present(
          sources.find(({ name }) => name === url),
          "an engine of the plan",
        );
      const registry = new WorkerRegistry({ sourceOf, hasFixed: true, drainMs: 0 });
      const composed = composeSidecar(options, {
        kv: new EmbeddedKvPool(kv),
        feed: new OperatorFeed(options.events),
        front: { registry, bodyWait: () => http.bodyWait() },
        history: null,
        journals: this.#disk.open(),
      });
      const running = serveOver(http, composed, options);
      running.sidecar.observe({
        tokens: () => {
          this.made += 1;
        },
      });
      return { running, handle: handle as unknown as Handle };
    } finally {
      Bun.serve = serve;
    }
  }

  #inflict(fault: SidecarFault): void {
    if (fault.kind === "sidecar_killed") {
      this.#restart(fault);
      return;
    }
    const engine = this.engines[fault.engine];
    if (engine === undefined) return;
    if (fault.kind === "kill") engine.kill(fault.ms);
    else if (fault.kind === "stop") engine.stop(fault.ms);
    else if (fault.kind === "control") engine.controlFault = fault.fault;
    else if (fault.kind === "cut") engine.link?.cut();
    else if (fault.kind === "lose") engine.link?.lose(fault.direction);
    else if (fault.kind === "repeat") engine.link?.repeat();
    else if (fault.kind === "slow") engine.link?.slow(fault.ms);
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
