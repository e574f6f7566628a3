// The worker port on an engine in a separate thread. It passes commands and events in batches, changes the
// weights, and turns every end of the thread into one `failed` event.

import { assert, unreachable } from "../../core/base/assert.ts";
import { AppError } from "../../core/base/errors.ts";
import type { WeightEpoch, WeightsId, WorkerId } from "../../core/base/ids.ts";
import type { SamplingParams } from "../../core/request/request.ts";
import type { ControlAnswer, EngineOperation } from "../../core/rollout/operation.ts";
import type {
  EngineWorker as RolloutWorker,
  SamplingSupport,
  WorkerCapacity,
  WorkerCommand,
  WorkerEvent,
  WorkerListener,
} from "../../core/rollout/worker.ts";
import { answered, embeddedSupport, invalid, pathIn, settingsOf } from "./control.ts";
import {
  type EngineAct,
  type FromEngine,
  kvBuffers,
  type LlamaEngineSettings,
  type Problem,
  type ToEngine,
} from "./messages.ts";
import type { HeldWeights } from "./weights.ts";

export interface LlamaThreadOptions {
  readonly workerId: WorkerId;
  /** Brings the weights of an update. */
  readonly model: { acquire(path: string, epoch: WeightEpoch): Promise<HeldWeights> };
  /** The worker releases them. */
  readonly weights: HeldWeights;
  readonly settings: LlamaEngineSettings;
}

/** Deadline of `close`: the engine reads messages between steps, and a step with a large prefill takes longest. */
const CLOSE_MS_MAX = 10_000;
/** Steps of a weight update in which an embedded engine has nothing to do. */
const NO_TRANSFER: ReadonlySet<string> = new Set(["connect", "start", "finish"]);
const ENDED = "the engine's thread has ended";

export class LlamaWorker implements RolloutWorker {
  readonly workerId: WorkerId;
  readonly name: string;
  readonly capacity: WorkerCapacity;
  readonly keepsKv = true;
  readonly #thread: Worker;
  readonly #model: LlamaThreadOptions["model"];
  /** The weights that the engine uses now. */
  #held: HeldWeights;
  /** Weights that a failed engine's thread may still use. */
  readonly #abandoned: HeldWeights[] = [];
  /** Callers that wait for the engine's `done`, in order. */
  readonly #acts: PromiseWithResolvers<void>[] = [];
  #isSleeping = false;
  #epoch: WeightEpoch;
  #listener: WorkerListener | null = null;
  #state: "running" | "failed" | "closed" = "running";
  /** Reason of the worker's failure, for a listener that is added later. */
  #failure: string | null = null;
  #closing: Promise<void> | null = null;
  #onClosed: () => void = () => {};

  private constructor(thread: Worker, capacity: WorkerCapacity, options: LlamaThreadOptions) {
    this.workerId = options.workerId;
    this.name = `embedded engine ${options.workerId}`;
    this.capacity = capacity;
    this.#thread = thread;
    this.#model = options.model;
    this.#held = options.weights;
    this.#epoch = options.settings.epoch;
    thread.onmessage = ({ data }: MessageEvent<FromEngine>) => this.#receive(data);
    thread.onerror = (event) => this.#fail(event.message);
    thread.addEventListener("close", () => {
      this.#fail(ENDED);
      this.#onClosed();
    });
  }

  /** Starts the engine's thread and waits until it can take commands. @throws AppError as the engine does. */
  static async open(options: LlamaThreadOptions): Promise<LlamaWorker> {
    const thread = new Worker(new URL("./engine-thread.ts", import.meta.url).href);
    const opened = new Promise<WorkerCapacity>((resolve, reject) => {
      thread.onmessage = ({ data }: MessageEvent<FromEngine>) => {
        if (data.kind === "opened") resolve(data.capacity);
        else if (data.kind === "failed") reject(errorOf(data));
      };
      thread.onerror = (event) => reject(new AppError("worker_failed", event.message));
      thread.addEventListener("close", () => reject(new AppError("worker_failed", ENDED)));
    });
    const { settings, weights: held } = options;
    thread.postMessage({ kind: "open", weights: held.weights, settings } satisfies ToEngine);
    try {
      return new LlamaWorker(thread, await opened, options);
    } catch (error) {
      thread.terminate();
      held.release();
      throw error;
    }
  }

  get weights(): WeightsId {
    return this.#held.weights.id;
  }

  listen(listener: WorkerListener): void {
    assert(this.#listener === null, "a worker has one listener");
    this.#listener = listener;
    const message = this.#failure;
    if (message === null) return;
    queueMicrotask(() => listener(this.#epoch, [{ kind: "failed", message }]));
  }

  supports(sampling: SamplingParams): SamplingSupport {
    return embeddedSupport(sampling, this.#held.weights.info.shape.vocabularySize);
  }

  perform(operation: EngineOperation, nextEpoch: WeightEpoch): Promise<ControlAnswer> {
    return answered(this.#carryOut(operation, nextEpoch));
  }

  /** Resolves to the body of the answer; null: an embedded engine does not have the operation. @throws AppError. */
  async #carryOut(operation: EngineOperation, nextEpoch: WeightEpoch): Promise<object | null> {
    switch (operation.kind) {
      case "load":
        await this.#changeWeights(operation.path, nextEpoch);
        return { results: [null] };
      case "update":
        // There are no transfers to prepare.
        if (NO_TRANSFER.has(operation.step)) return {};
        if (operation.step !== "part") return null;
        await this.#changeWeights(pathIn(operation), nextEpoch);
        return {};
      // Level 0 only stops scheduling in vLLM, which the rollout does itself.
      case "sleep":
        if (operation.level >= 1) await this.#act({ kind: "sleep" });
        this.#isSleeping ||= operation.level >= 1;
        return {};
      // Weights never leave memory here, so the tag "weights" alone wakes nothing.
      case "wake": {
        const { tags } = operation;
        if (tags.length > 0 && !tags.includes("kv_cache")) return {};
        await this.#act({ kind: "wake" });
        this.#isSleeping = false;
        return {};
      }
      case "canary":
        if (operation.adapter !== null) throw invalid("an embedded engine serves no adapters");
        await this.#act({ kind: "canary" });
        return {};
      case "ask":
        if (operation.about === "world_size") return { world_size: 1 };
        if (operation.about === "is_asleep") return { is_sleeping: this.#isSleeping };
        return operation.about === "settings" ? settingsOf(this.weights.split("-")[0] ?? "") : null;
      // No KV outlives its weights.
      case "drop_cache":
        return operation.cache === "prefix" ? { success: true } : null;
      case "rpc": {
        const { method } = Object(operation.body);
        throw invalid(`method ${method}: an embedded engine has only reload_weights with a path`);
      }
      default:
        return null;
    }
  }

  /** Sends commands. The `kv` buffer of a `run` moves to the engine: the sender's is empty afterwards. */
  send(commands: readonly WorkerCommand[]): void {
    if (this.#state === "running") this.#post({ kind: "commands", commands }, kvBuffers(commands));
  }

  close(): Promise<void> {
    this.#closing ??= this.#close();
    return this.#closing;
  }

  /** Resolves when the new weights serve. @throws AppError: the old ones still do. */
  async #changeWeights(path: string, epoch: WeightEpoch): Promise<void> {
    const held = await this.#model.acquire(path, epoch);
    try {
      await this.#act({ kind: "reload", weights: held.weights, epoch });
    } catch (error) {
      if (this.#state === "failed") this.#abandoned.push(held);
      else held.release();
      throw error;
    }
    this.#held.release();
    this.#held = held;
  }

  /** Sends a message, and resolves when the engine has carried it out. @throws AppError worker_failed. */
  #act(message: EngineAct): Promise<void> {
    if (this.#state !== "running") return Promise.reject(this.#closedError());
    const done = Promise.withResolvers<void>();
    this.#acts.push(done);
    this.#post(message);
    return done.promise;
  }

  #closedError(): AppError {
    return new AppError("worker_failed", `${this.name} is ${this.#state}`);
  }

  #receive(message: FromEngine): void {
    switch (message.kind) {
      case "events":
        this.#epoch = message.epoch;
        this.#deliver(message.events);
        break;
      case "done":
        if (message.problem === null) this.#acts.shift()?.resolve();
        else this.#acts.shift()?.reject(errorOf(message.problem));
        break;
      case "failed":
        this.#fail(message.message);
        this.#onClosed();
        break;
      case "closed":
        this.#onClosed();
        break;
      case "opened":
        break;
      default:
        unreachable(message);
    }
  }

  #deliver(events: readonly WorkerEvent[]): void {
    if (this.#state === "running") this.#listener?.(this.#epoch, events);
  }

  #fail(message: string): void {
    if (this.#state !== "running") return;
    this.#failure = message;
    this.#deliver([{ kind: "failed", message }]);
    this.#state = "failed";
    for (const act of this.#acts.splice(0)) act.reject(this.#closedError());
  }

  async #close(): Promise<void> {
    const running = this.#state === "running";
    this.#state = "closed";
    if (running) {
      const closed = new Promise<void>((resolve) => {
        this.#onClosed = resolve;
        setTimeout(resolve, CLOSE_MS_MAX).unref();
      });
      this.#post({ kind: "close" });
      await closed;
    }
    this.#thread.terminate();
    for (const act of this.#acts.splice(0)) act.reject(this.#closedError());
    for (const held of [...this.#abandoned.splice(0), this.#held]) held.release();
  }

  #post(message: ToEngine, transfers: ArrayBuffer[] = []): void {
    this.#thread.postMessage(message, transfers);
  }
}

function errorOf({ code, message }: Problem): AppError {
  return new AppError(code, message);
}
