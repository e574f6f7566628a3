// The embedded engine's door: opens a model once for the process, and any number of workers on it.

import { type WeightEpoch, type WorkerId, workerId } from "../../core/base/ids.ts";
import type { BudgetName } from "../../core/draft/budget.ts";
import type { Worker as RolloutWorker } from "../../core/rollout/worker.ts";
import type { EncoderThread } from "../../text/encoder-job.ts";
import type { Text } from "../../text/text.ts";
import { loadBackend, openLibrary } from "./native.ts";
import type { LlamaTokenizer, Tokenizer } from "./tokenizer.ts";
import type { ModelInfo } from "./weights.ts";
import { type OpenedStore, type WeightsLease, WeightsStore } from "./weights-store.ts";
import { LlamaWorker } from "./worker.ts";

export interface LlamaModelOptions {
  readonly path: string;
  /**
   * Portable kernels whose results do not depend on how requests are batched, several times slower. It
   * belongs to the process: a model of the other kind cannot be opened in it any more.
   */
  readonly deterministic: boolean;
}

/**
 * An opened model: its weights stay in memory until it and every worker on it are closed, whatever becomes of
 * the file.
 */
export interface LlamaModel {
  readonly path: string;
  readonly deterministic: boolean;
  readonly tokenizer: Tokenizer;
  /** The same vocabulary, and the chat template, as the text port. */
  readonly text: Text;
  /** A thread that encodes as `text` does. */
  readonly openTextThread: () => EncoderThread;
  readonly vocabularySize: number;
  /** Prompt + output the model was trained for, in tokens. */
  readonly contextTokens: number;
  readonly eosTokenId: number;
  /** Every token that ends a text, eos included. */
  readonly stopTokenIds: readonly number[];
  /** Opens workers on this model's weights. @throws AppError as `openLlamaWorkers`. */
  openWorkers(options: LlamaWorkersOptions): Promise<RolloutWorker[]>;
  /** Safe to call twice. */
  close(): void;
}

export interface LlamaWorkersOptions {
  readonly workers: number;
  /** Id of the first worker; the others follow. Default: 0. */
  readonly firstWorkerId?: WorkerId;
  /** Slots of each worker: see WorkerCapacity. */
  readonly slots: number;
  readonly kvTokens: number;
  readonly contextTokens: number;
  /** Weight epoch of the model as it is now. */
  readonly epoch: WeightEpoch;
  /** Default: adaptive. */
  readonly draftBudget?: BudgetName;
  /** See EngineSettings. Default: 64 MiB. */
  readonly historyBytes?: number;
}

/**
 * CPU time for which each engine measures its steps at start. All do it at the same time, so that caches are
 * shared as they will be when the engines work.
 */
const PROFILE_MS = 1000;
const HISTORY_BYTES = 64 * 1024 * 1024;

/** @throws AppError native_library_missing, model_unreadable, or invalid_config (see `deterministic`). */
export async function openLlamaModel(options: LlamaModelOptions): Promise<LlamaModel> {
  const library = openLibrary();
  loadBackend(library, options);
  return new OpenedModel(options, await WeightsStore.open(library, options));
}

/** @throws AppError invalid_config or worker_failed; then no worker is left running. */
export async function openLlamaWorkers(
  model: LlamaModel,
  options: LlamaWorkersOptions,
): Promise<RolloutWorker[]> {
  return await model.openWorkers(options);
}

class OpenedModel implements LlamaModel {
  readonly path: string;
  readonly deterministic: boolean;
  readonly tokenizer: LlamaTokenizer;
  readonly #store: WeightsStore;
  readonly #lease: WeightsLease;
  #closed = false;

  constructor(options: LlamaModelOptions, { store, first, tokenizer }: OpenedStore) {
    this.path = options.path;
    this.deterministic = options.deterministic;
    this.tokenizer = tokenizer;
    this.#store = store;
    this.#lease = first;
  }

  get text(): Text {
    return this.tokenizer;
  }

  readonly openTextThread = (): EncoderThread => this.tokenizer.openThread();

  get #info(): ModelInfo {
    return this.#lease.weights.info;
  }

  get vocabularySize(): number {
    return this.#info.shape.vocabularySize;
  }

  get contextTokens(): number {
    return this.#info.contextTokens;
  }

  get eosTokenId(): number {
    return this.#info.eosTokenId;
  }

  get stopTokenIds(): readonly number[] {
    return this.#info.stopTokenIds;
  }

  async openWorkers(options: LlamaWorkersOptions): Promise<RolloutWorker[]> {
    const { workers, firstWorkerId = 0, ...given } = options;
    const defaults = { draftBudget: "adaptive", historyBytes: HISTORY_BYTES } as const;
    const settings = { ...defaults, ...given, profileMs: PROFILE_MS };
    const opening = Array.from({ length: workers }, (_, index) => {
      const lease = this.#lease.share();
      const id = workerId(firstWorkerId + index);
      return LlamaWorker.open({ workerId: id, store: this.#store, lease, settings });
    });
    const results = await Promise.allSettled(opening);
    const failure = results.find((result) => result.status === "rejected");
    const opened = results.flatMap((result) =>
      result.status === "fulfilled" ? [result.value] : [],
    );
    if (failure === undefined) return opened;
    await Promise.all(opened.map((worker) => worker.close()));
    throw failure.reason;
  }

  close(): void {
    if (this.#closed) return;
    this.#closed = true;
    this.tokenizer.close();
    this.#store.close();
    this.#lease.release();
  }
}
