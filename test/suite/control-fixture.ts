// Three scripted engines behind the control plane, without a server: what a test calls, and what each engine hears.

import { ADAPTER_CONTROL } from "../../src/adapters/list.ts";
import type { AppError } from "../../src/core/base/errors.ts";
import type { WeightsId } from "../../src/core/base/ids.ts";
import type { RolloutRequest } from "../../src/core/request/buffer.ts";
import type { ControlAnswer, EngineOperation } from "../../src/core/rollout/operation.ts";
import type { WorkerSource } from "../../src/fleet/engines.ts";
import { WorkerPool, type WorkerPoolOptions } from "../../src/fleet/pool.ts";
import { type WeightsNotice, WeightUpdates } from "../../src/fleet/updates.ts";
import { controlRoutes } from "../../src/server/control/routes.ts";
import type { Route } from "../../src/server/route.ts";
import { SimulatedWorker } from "../faults/simulated/worker.ts";
import { exchangeOf } from "./exchange.ts";
import { ManualTimers } from "./manual-clock.ts";
import { samplingOf } from "./request-spec.ts";
import { Bed } from "./sidecar-bed.ts";

const TIMEOUT_MS = 5000;

export type Script = (operation: EngineOperation) => ControlAnswer | Promise<ControlAnswer>;

export class ScriptedWorker extends SimulatedWorker {
  /** Operations but canaries. */
  readonly heard: EngineOperation[] = [];
  weights: WeightsId | null = null;
  script: Script = () => ({ status: 200, body: {} });
  generates: () => ControlAnswer = () => ({ status: 200, body: { tokens: 4 } });
  /** The next answer waits for it; null: for nothing. */
  gate: Promise<void> | null = null;

  override async perform(operation: EngineOperation): Promise<ControlAnswer> {
    if (operation.kind === "canary") return this.generates();
    this.heard.push(operation);
    const { gate } = this;
    this.gate = null;
    if (gate !== null) await gate;
    return this.script(operation);
  }

  /** Contents of the operation that was heard last. */
  get lastBody(): unknown {
    const last = this.heard.at(-1);
    return last !== undefined && "body" in last ? last.body : null;
  }
}

export interface FixtureOptions {
  readonly keepsWeights: boolean;
  /** Weights of an engine that is opened now; default: the engine cannot name them. */
  readonly weightsOf?: (index: number) => WeightsId | null;
  readonly before?: WorkerPoolOptions["before"];
}

export class ControlFixture extends Bed {
  /** Every worker that was ever opened, the newest of an index last. */
  readonly opened: ScriptedWorker[][] = [[], [], []];
  readonly finished: RolloutRequest[] = [];
  readonly pool: WorkerPool;
  readonly notices: WeightsNotice[] = [];
  readonly weights: WeightUpdates;
  /** Changes of members that the pool reported. */
  readonly told: string[] = [];
  readonly #reopenings = new ManualTimers();
  /** Deadlines and polls that have not been cancelled. */
  readonly #timers = new ManualTimers();
  readonly #reach: ((lost: string | null) => void)[] = [];
  readonly #routes: ReturnType<typeof controlRoutes>;
  readonly #given: FixtureOptions;
  refusesToOpen = false;
  badBody: AppError | null = null;
  #nextGate: Promise<void> | null = null;

  private constructor(options: FixtureOptions) {
    super({ workers: 0, lengthOf: () => 30, chunkTokens: 4, limits: { requestsMax: 100 } });
    this.#given = options;
    this.pool = new WorkerPool({
      sidecar: this.sidecar,
      sources: this.opened.map((_, index) => this.#sourceOf(index)),
      later: this.#reopenings.later,
      controlMsMax: 1000,
      changed: ({ source, state, reason }) => this.told.push(`${source.name} ${state} ${reason}`),
      before: options.before ?? null,
    });
    this.sidecar.observe({ finished: (request) => this.finished.push(request) });
    const shared = {
      ...{ sidecar: this.sidecar, pool: this.pool, timeoutMs: TIMEOUT_MS },
      later: this.#timers.later,
    };
    this.weights = new WeightUpdates({
      ...shared,
      modelNames: ["model"],
      clock: this.clock,
      notice: (notice) => this.notices.push(notice),
    });
    this.#routes = controlRoutes(
      {
        ...shared,
        weights: this.weights,
        modelName: "model",
        version: "1.2.3",
        abortRequests: (ids) => ids?.length ?? 0,
      },
      ADAPTER_CONTROL,
    );
  }

  static async open(options: FixtureOptions = { keepsWeights: true }): Promise<ControlFixture> {
    const fixture = new ControlFixture(options);
    await fixture.pool.open();
    return fixture;
  }

  /** Engines that answer everything with their numbers of ranks. */
  static async ofRanks(...sizes: readonly number[]): Promise<ControlFixture> {
    const fixture = await ControlFixture.open();
    for (const [i, world_size] of sizes.entries()) {
      fixture.worker(i).script = () => ({ status: 200, body: { world_size } });
    }
    return fixture;
  }

  #sourceOf(index: number): WorkerSource {
    const { keepsWeights, weightsOf } = this.#given;
    return {
      name: `engine-${index}`,
      keepsWeights,
      open: async ({ workerId, epoch, reach }) => {
        this.#reach[index] = reach;
        if (this.refusesToOpen) throw new Error("connection refused");
        const worker = new ScriptedWorker({
          workerId,
          capacity: { slots: 2, kvTokens: 1000, contextTokens: 100, kvBytesPerToken: 8 },
          epoch,
          lengthOf: () => 30,
        });
        worker.weights = weightsOf?.(index) ?? null;
        worker.gate = this.#nextGate;
        this.#nextGate = null;
        this.opened[index]?.push(worker);
        return worker;
      },
    };
  }

  worker(index: number): ScriptedWorker {
    const worker = this.opened[index]?.at(-1);
    if (worker === undefined) throw new Error(`engine-${index} was not opened`);
    return worker;
  }

  get states(): string[] {
    return this.pool.members.map(({ state }) => state);
  }

  async call(
    method: "GET" | "POST",
    target: string,
    body: unknown = null,
  ): Promise<{ status: number; body: unknown }> {
    const url = new URL(target, "http://sidecar");
    const answering = this.#handled(this.#routeOf(method, url), url, body);
    let isAnswered = false;
    const answered = () => {
      isAnswered = true;
    };
    answering.then(answered, answered);
    for (let i = 0; i < 500 && !isAnswered; i += 1) await this.step();
    if (!isAnswered) throw new Error(`${target} was not answered`);
    const response = await answering;
    const text = await response.text();
    return { status: response.status, body: text === "" ? null : JSON.parse(text) };
  }

  /** Sends a request whose answer nothing in the fixture waits for. */
  async send(target: string, body: unknown): Promise<Response> {
    const url = new URL(target, "http://sidecar");
    return await this.#handled(this.#routeOf("POST", url), url, body);
  }

  #routeOf(method: string, url: URL): Route {
    const route = this.#routes.find((r) => r.method === method && r.path === url.pathname);
    if (route === undefined) throw new Error(`no route ${url.pathname}`);
    return route;
  }

  async #handled(route: Route, url: URL, body: unknown): Promise<Response> {
    const json = async () => {
      if (this.badBody !== null) throw this.badBody;
      return body;
    };
    return await route.handle(exchangeOf(route.method, url, body, { json }));
  }

  /** The worker that is opened next answers only when it is let go. */
  gateNext(): () => void {
    const gate = Promise.withResolvers<void>();
    this.#nextGate = gate.promise;
    return () => gate.resolve();
  }

  ask(n: number): readonly RolloutRequest[] {
    return this.generate([1, 2, 3], n, { sampling: samplingOf({ tokensMax: 50 }) });
  }

  override async step(): Promise<void> {
    for (const list of this.opened) list.at(-1)?.step();
    await new Promise<void>((resolve) => setImmediate(resolve));
  }

  async steps(count: number): Promise<void> {
    for (let i = 0; i < count; i += 1) await this.step();
  }

  /** Every deadline passes. */
  async passTime(): Promise<void> {
    await this.#pass(Number.POSITIVE_INFINITY);
  }

  /** Every poll, but no deadline, is due once. */
  async passPolls(): Promise<void> {
    await this.#pass(TIMEOUT_MS - 1);
  }

  async #pass(msMax: number): Promise<void> {
    this.#timers.run(msMax);
    await this.steps(5);
  }

  /** The engine's connection is lost, and not given up yet. */
  lose(index: number): void {
    this.#reach[index]?.("the connection was lost");
  }

  /** The engine's connection is restored, with the state that the engine had. */
  regain(index: number): void {
    this.#reach[index]?.(null);
  }

  /** Runs what was scheduled for later now. Returns the pauses. */
  async retry(): Promise<number[]> {
    const pauses = this.#reopenings.run();
    await this.steps(3);
    return pauses;
  }
}

/** Starts a call whose answer is not awaited here. */
export async function begun(
  fixture: ControlFixture,
  target: string,
  body: unknown = null,
): Promise<{ answer: Promise<{ status: number; body: unknown }> }> {
  const answer = fixture.call("POST", target, body);
  answer.catch(() => undefined);
  await fixture.step();
  return { answer };
}

/** Makes an engine answer only when it is let go. */
export function gated(worker: ScriptedWorker, status = 200): () => void {
  const gate = Promise.withResolvers<void>();
  worker.gate = gate.promise;
  worker.script = () => ({ status, body: {} });
  return () => gate.resolve();
}
