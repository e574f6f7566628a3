// A simulated engine server: a process of its own that keeps its weights while sidecars come and go, and takes weight
// updates as vLLM does. Its tokens tell the prompt, the position and the weights that it really has, and so does its KV.

import { AppError } from "../../../src/core/base/errors.ts";
import { fold32 } from "../../../src/core/base/hash.ts";
import type { SamplingParams } from "../../../src/core/request/request.ts";
import type { ControlAnswer, EngineOperation } from "../../../src/core/rollout/operation.ts";
import type {
  OpenOptions,
  SamplingSupport,
  WorkerCapacity,
  WorkerCommand,
} from "../../../src/core/rollout/worker.ts";
import type { WorkerSource } from "../../../src/fleet/engines.ts";
import type { Random } from "../../suite/random.ts";
import { FaultyLink } from "./link.ts";
import type { VirtualTime } from "./virtual-time.ts";
import { SimulatedWorker } from "./worker.ts";

/** Number of weights that are of no update as a whole. */
const MIXED = -1;
const FIRST_TOKEN = 10;
const TOKENS = 900;
const STATS_EVERY = 8;

/** Faults of the next request that changes weights. wrong: it is answered with 200, and has no effect. */
export type ControlFault = "fail" | "refuse" | "hang" | "wrong";

/** The one token of this prompt and position under the weights of this number. */
export function tellingToken(prompt: ArrayLike<number>, position: number, weights: number): number {
  let hash = fold32(position, weights + 2);
  for (let i = 0; i < prompt.length; i += 1) hash = fold32(hash, prompt[i] ?? 0);
  return FIRST_TOKEN + (hash % TOKENS);
}

/** Tokens and logprobs that every engine with these weights makes. */
export function canaryOf(weights: number): { tokens: number[]; logprobs: number[] } {
  return { tokens: [1, 2], logprobs: [-3 - 2 * weights, -1] };
}

class ServerWorker extends SimulatedWorker {
  readonly #server: EngineServer;

  constructor(server: EngineServer, { workerId, epoch }: OpenOptions, capacity: WorkerCapacity) {
    super({
      ...{ workerId, epoch, capacity },
      ...{ lengthOf: () => Number.POSITIVE_INFINITY, statsEvery: STATS_EVERY },
      tokenOf: ({ prompt }, position) =>
        server.isAsleep ? 0 : tellingToken(prompt, position, server.weights),
    });
    this.#server = server;
  }

  protected override get weightsNow(): number {
    return this.#server.weights;
  }

  /** Responses with a penalty come in one piece only. */
  override supports({ shaping }: SamplingParams): SamplingSupport {
    return { kind: (shaping?.presencePenalty ?? 0) === 0 ? "divided" : "whole" };
  }

  override send(commands: readonly WorkerCommand[]): void {
    super.send(commands);
    this.#server.wake();
  }

  override perform(operation: EngineOperation): Promise<ControlAnswer> {
    return this.#server.perform(operation);
  }
}

export class EngineServer implements WorkerSource {
  readonly name: string;
  readonly keepsWeights = true;
  readonly #time: VirtualTime;
  readonly #random: Random;
  readonly #capacity: WorkerCapacity;
  readonly #hasCanary: boolean;
  link: FaultyLink | null = null;
  weights = 0;
  controlFault: ControlFault | null = null;
  #isUp = true;
  #isStopped = false;
  isAsleep = false;
  /** Parts of the update that is open; null: none is. */
  #parts: Set<number> | null = null;
  #isStepping = false;

  constructor(
    name: string,
    own: { time: VirtualTime; random: Random; capacity: WorkerCapacity; hasCanary: boolean },
  ) {
    this.name = name;
    this.#time = own.time;
    this.#random = own.random;
    this.#capacity = own.capacity;
    this.#hasCanary = own.hasCanary;
  }

  /** `isAlive`: whether the process that opens it still runs. */
  async open(options: OpenOptions, isAlive: () => boolean = () => true): Promise<FaultyLink> {
    await this.#time.sleep(1 + this.#random.below(5));
    if (!isAlive()) return await new Promise<never>(() => {});
    if (!this.#isUp || this.#isStopped) throw new AppError("worker_failed", "connection refused");
    this.link?.drop();
    const worker = new ServerWorker(this, options, this.#capacity);
    this.link = new FaultyLink(worker, this.#time, this.#random.below(3));
    this.wake();
    return this.link;
  }

  /** The process is killed, and started again after a while with its first weights. */
  kill(ms: number): void {
    if (!this.#isUp) return;
    this.#isUp = false;
    this.link?.inner.kill();
    this.weights = 0;
    this.#parts = null;
    this.isAsleep = false;
    this.#time.after(ms, () => {
      this.#isUp = true;
    });
  }

  /** SIGSTOP: it makes no step and answers nothing for a while. */
  stop(ms: number): void {
    this.#isStopped = true;
    this.#time.after(ms, () => {
      this.#isStopped = false;
      this.wake();
    });
  }

  wake(): void {
    if (this.#isStepping) return;
    this.#isStepping = true;
    this.#time.after(1 + this.#random.below(3), () => {
      this.#isStepping = false;
      if (this.link === null || this.link.isGone || this.#isStopped) return;
      if (this.link.inner.isIdle) return;
      this.link.inner.step();
      this.wake();
    });
  }

  async perform(operation: EngineOperation): Promise<ControlAnswer> {
    await this.#time.sleep(1 + this.#random.below(4));
    while (this.#isStopped) await this.#time.sleep(10);
    const isPart = operation.kind === "update" && operation.step === "part";
    const takes = operation.kind === "load" || isPart;
    const changes = takes || (operation.kind === "update" && this.controlFault !== "wrong");
    const fault = changes ? this.controlFault : null;
    if (changes) this.controlFault = null;
    if (fault === "fail") return { status: 500, body: { error: "out of memory" } };
    if (fault === "refuse") return { status: 400, body: { error: "unknown tensor" } };
    const before = this.weights;
    const answer = this.#carryOut(operation);
    if (fault === "hang") return await new Promise<never>(() => {});
    if (fault === "wrong" && this.weights !== before) this.weights = before;
    return answer;
  }

  #carryOut(operation: EngineOperation): ControlAnswer {
    switch (operation.kind) {
      case "load":
        this.weights = Number(operation.path.split("/").at(-1));
        return { status: 200, body: {} };
      case "update":
        return this.#update(operation.step, Object(operation.body));
      case "canary":
        if (this.isAsleep) return { status: 200, body: { asleep: true } };
        return { status: 200, body: this.#hasCanary ? canaryOf(this.weights) : {} };
      case "sleep":
        this.isAsleep = true;
        if (operation.level === 2) this.weights = MIXED;
        return { status: 200, body: {} };
      case "wake":
        this.isAsleep = false;
        return { status: 200, body: {} };
      default:
        return { status: 200, body: { world_size: 1, is_sleeping: this.isAsleep } };
    }
  }

  #update(step: string, body: { weights?: number; part?: number; of?: number }): ControlAnswer {
    const { weights = MIXED, part = 0, of = 1 } = body;
    const isOpen = this.#parts !== null;
    if (step === "start" || step === "finish") {
      const error = isOpen ? "an update is open" : "no update is open";
      if (isOpen === (step === "start")) return { status: 400, body: { error } };
      this.#parts = isOpen ? null : new Set();
    } else if (step === "part") {
      this.#parts?.add(part);
      this.weights = (this.#parts?.size ?? 1) === of ? weights : MIXED;
    }
    return { status: 200, body: {} };
  }
}
