// Keeps one engine open: when it fails it is closed and opened again after growing pauses. An engine that opens and
// dies again is opened again without limit: a request may be the cause, and continues elsewhere. An engine that cannot
// be opened several times in a row ends the process.

import { errorText } from "../../core/base/errors.ts";
import type { Worker } from "../../core/rollout/worker.ts";
import { Backoff, type BackoffLimits } from "./backoff.ts";

export interface EngineKeeperOptions {
  /** Runs something after a while; returns what cancels it. */
  readonly later: (act: () => void, ms: number) => () => void;
  readonly nowMs: () => number;
  readonly notify: (
    kind: "engine_restarts" | "engine_not_opened" | "engine_ready",
    fields: Readonly<Record<string, string | number>>,
  ) => void;
}

/** An engine opens in about a second: with these pauses one that dies at each request takes a tenth of a core. */
const LIMITS: BackoffLimits = {
  firstMs: 100,
  msMax: 5_000,
  goodMs: 30_000,
  failuresMax: Number.POSITIVE_INFINITY,
};
/** Tries in a row that did not open it: about half a minute. */
const TRIES_MAX = 10;

export class EngineKeeper {
  /** Resolves with the reason when the engine cannot be opened any more. */
  readonly gaveUp: Promise<string>;
  readonly #open: () => Promise<Worker>;
  readonly #options: EngineKeeperOptions;
  readonly #backoff = new Backoff(LIMITS);
  readonly #onGaveUp: (reason: string) => void;
  #worker: Worker;
  #serve: (worker: Worker) => void = () => {};
  #openedMs: number;
  #tries = 0;
  #isRestarting = false;
  #cancel: () => void = () => {};
  #isClosed = false;

  private constructor(open: () => Promise<Worker>, worker: Worker, options: EngineKeeperOptions) {
    this.#open = open;
    this.#worker = worker;
    this.#options = options;
    this.#openedMs = options.nowMs();
    const { promise, resolve } = Promise.withResolvers<string>();
    this.gaveUp = promise;
    this.#onGaveUp = resolve;
  }

  /** @throws what `open` throws. */
  static async open(
    open: () => Promise<Worker>,
    options: EngineKeeperOptions,
  ): Promise<EngineKeeper> {
    return new EngineKeeper(open, await open(), options);
  }

  get worker(): Worker {
    return this.#worker;
  }

  /** Called with every engine that replaces a failed one. */
  serve(serve: (worker: Worker) => void): void {
    this.#serve = serve;
  }

  /** The engine has failed. */
  failed(): void {
    if (this.#isClosed || this.#isRestarting) return;
    this.#isRestarting = true;
    void this.#worker.close();
    this.#again(this.#options.nowMs() - this.#openedMs);
  }

  async close(): Promise<void> {
    this.#isClosed = true;
    this.#cancel();
    await this.#worker.close();
  }

  #again(healthyMs: number): void {
    const pauseMs = this.#backoff.next(healthyMs) ?? LIMITS.msMax;
    this.#options.notify("engine_restarts", { in_ms: pauseMs });
    this.#cancel = this.#options.later(() => void this.#restart(), pauseMs);
  }

  async #restart(): Promise<void> {
    // A thread that still ends must not share the memory with its successor.
    await this.#worker.close();
    let worker: Worker;
    try {
      worker = await this.#open();
    } catch (error) {
      return this.#notOpened(errorText(error));
    }
    if (this.#isClosed) {
      await worker.close();
      return;
    }
    this.#worker = worker;
    this.#tries = 0;
    this.#openedMs = this.#options.nowMs();
    this.#isRestarting = false;
    this.#options.notify("engine_ready", {});
    this.#serve(worker);
  }

  #notOpened(reason: string): void {
    if (this.#isClosed) return;
    this.#tries += 1;
    this.#options.notify("engine_not_opened", { tries: this.#tries, reason });
    if (this.#tries >= TRIES_MAX) this.#onGaveUp(reason);
    else this.#again(0);
  }
}
