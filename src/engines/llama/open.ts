// Opens a model for embedded engines, once for the process, and any number of workers on it.

import type { WorkerId } from "../../core/base/ids.ts";
import type { EngineWorker as RolloutWorker } from "../../core/rollout/worker.ts";
import type { EncoderThread } from "../../text/encoder.ts";
import type { Text } from "../../text/text.ts";
import type { LlamaEngineSettings } from "./messages.ts";
import { loadBackend, openLibrary } from "./native.ts";
import { WeightsStore } from "./weights-store.ts";
import { LlamaWorker } from "./worker.ts";

export interface LlamaModelOptions {
  readonly path: string;
  /**
   * true: portable kernels, several times slower, whose results do not depend on how requests are batched.
   * It is decided once for the process: afterwards no model of the other kind can be opened.
   */
  readonly deterministic: boolean;
}

/**
 * An opened model. Its weights stay in memory until it and all workers on it are closed, even if the file
 * changes.
 */
export interface LlamaModel {
  readonly path: string;
  readonly deterministic: boolean;
  /** The vocabulary and the chat template. */
  readonly text: Text;
  /** Opens a thread that encodes as `text` does. */
  readonly openTextThread: () => EncoderThread;
  readonly vocabularySize: number;
  /** Prompt + output the model was trained for, in tokens. */
  readonly contextTokens: number;
  readonly eosTokenId: number;
  /** Every token that ends a text, eos included. */
  readonly stopTokenIds: readonly number[];
  /** Opens a worker on this model's weights. @throws AppError invalid_config, worker_failed. */
  openWorker(options: LlamaWorkerOptions): Promise<RolloutWorker>;
  /** Safe to call twice. */
  close(): void;
}

/** Without `draftsAlways` drafts are verified only if that pays. */
export interface LlamaWorkerOptions
  extends Omit<LlamaEngineSettings, "draftsAlways">,
    Partial<Pick<LlamaEngineSettings, "draftsAlways">> {
  readonly workerId: WorkerId;
}

/** @throws AppError native_library_missing, model_unreadable, or invalid_config (see `deterministic`). */
export async function openLlamaModel(options: LlamaModelOptions): Promise<LlamaModel> {
  const library = openLibrary();
  loadBackend(library, options);
  const { store, first, tokenizer } = await WeightsStore.open(library, options);
  const { shape, contextTokens, eosTokenId, stopTokenIds } = first.weights.info;
  let isClosed = false;
  return {
    path: options.path,
    deterministic: options.deterministic,
    text: tokenizer,
    vocabularySize: shape.vocabularySize,
    contextTokens,
    eosTokenId,
    stopTokenIds,
    openTextThread: () => tokenizer.openThread(),
    openWorker: ({ workerId, ...wanted }) => {
      const settings = { draftsAlways: false, ...wanted };
      return LlamaWorker.open({ workerId, store, lease: first.share(), settings });
    },
    close: () => {
      if (isClosed) return;
      isClosed = true;
      tokenizer.close();
      store.close();
      first.release();
    },
  };
}
