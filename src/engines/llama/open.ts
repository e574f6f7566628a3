// A model that is open in this process: its vocabulary, and the weights that its engines use, each loaded once and freed
// with their last holder. Weights are identified by their digest and not by their path: a weight update may rewrite the same
// file, and weights loaded from it before stay unchanged.

import { AppError } from "../../core/base/errors.ts";
import type { WeightEpoch, WeightsId, WorkerId } from "../../core/base/ids.ts";
import type { EngineWorker } from "../../core/rollout/worker.ts";
import { Lane, openThread } from "../../text/job-lane.ts";
import { MemoryFile } from "./files.ts";
import type { LlamaEngineSettings } from "./messages.ts";
import { loadBackend } from "./native.ts";
import { LlamaTokenizer } from "./tokenizer.ts";
import { HeldWeights, LlamaWeights, type ModelInfo } from "./weights.ts";
import { readWeights } from "./weights-reader.ts";
import type { LoadedModel, LoadRequest } from "./weights-thread.ts";
import { LlamaWorker } from "./worker.ts";

export interface LlamaModelOptions {
  readonly path: string;
  /**
   * true: portable kernels, several times slower, whose results do not depend on how requests are batched.
   * It is decided once for the process: afterwards no model of the other kind can be opened.
   */
  readonly deterministic: boolean;
}

export interface LlamaWorkerOptions extends LlamaEngineSettings {
  readonly workerId: WorkerId;
}

/**
 * Opens a model from a GGUF file. Its weights stay in memory until it and all workers on it are closed, even if the file
 * changes. @throws AppError native_library_missing, model_unreadable, or invalid_config (see `deterministic`).
 */
export async function openLlamaModel(options: LlamaModelOptions): Promise<LlamaModel> {
  const { path } = options;
  loadBackend(options);
  const form = MemoryFile.create();
  try {
    const { file, id } = await readWeights({ ...options, isFirst: true, form });
    try {
      const text = LlamaTokenizer.load(file.path, path);
      return new LlamaModel(options, { form, text, id, loaded: await load(file, path) });
    } finally {
      file.close();
    }
  } catch (error) {
    form.close();
    throw error;
  }
}

interface Opened {
  /** The form of the first weights, which safetensors are converted to. */
  readonly form: MemoryFile;
  readonly text: LlamaTokenizer;
  readonly id: WeightsId;
  readonly loaded: LoadedModel;
}

export class LlamaModel {
  /** The vocabulary and the chat template. */
  readonly text: LlamaTokenizer;
  /** The weights that it was opened with. */
  readonly first: HeldWeights;
  readonly deterministic: boolean;
  readonly #form: MemoryFile;
  readonly #loaded = new Map<WeightsId, HeldWeights>();
  /** Reads under way, by epoch and path: engines that load the same file at the same time read it once. */
  readonly #reading = new Map<string, Promise<HeldWeights>>();
  #isClosed = false;

  constructor({ deterministic }: LlamaModelOptions, { form, text, id, loaded }: Opened) {
    this.deterministic = deterministic;
    this.#form = form;
    this.text = text;
    this.first = this.#keep(id, loaded);
  }

  get info(): ModelInfo {
    return this.first.weights.info;
  }

  /** Opens a worker on this model's weights. @throws AppError invalid_config, worker_failed. */
  openWorker({ workerId, ...settings }: LlamaWorkerOptions): Promise<EngineWorker> {
    return LlamaWorker.open({ workerId, model: this, weights: this.first.hold(), settings });
  }

  /**
   * Loads a GGUF file, a .safetensors file or a folder of these as it is now, or waits for another call that
   * loads it for the same epoch. The caller releases the weights. @throws AppError model_unreadable.
   */
  async acquire(path: string, epoch: WeightEpoch): Promise<HeldWeights> {
    if (this.#isClosed) throw new AppError("worker_failed", `${path}: the model is closed`);
    const name = `${epoch}:${path}`;
    const read = await this.#reading.getOrInsertComputed(name, () => this.#read(name, path));
    return read.hold();
  }

  /** Weights that workers hold stay loaded. Safe to call twice. */
  close(): void {
    if (this.#isClosed) return;
    this.#isClosed = true;
    this.text.close();
    this.#form.close();
    this.first.release();
  }

  async #read(name: string, path: string): Promise<HeldWeights> {
    try {
      const options = { path, deterministic: this.deterministic, isFirst: false };
      const { file, id } = await readWeights({ ...options, form: this.#form });
      try {
        const held = this.#loaded.get(id)?.hold() ?? this.#keep(id, await load(file, path));
        // All who wait for it hold it by then.
        setImmediate(() => held.release());
        return held;
      } finally {
        file.close();
      }
    } finally {
      this.#reading.delete(name);
    }
  }

  #keep(id: WeightsId, loaded: LoadedModel): HeldWeights {
    const free = () => new LlamaWeights(loaded).free();
    const concurrent = this.#loaded.get(id);
    if (concurrent !== undefined) {
      free();
      return concurrent.hold();
    }
    const held = new HeldWeights({ id, ...loaded }, () => {
      this.#loaded.delete(id);
      free();
    });
    this.#loaded.set(id, held);
    return held;
  }
}

const THREAD = new URL("./weights-thread.ts", import.meta.url);
/** Deadline of a load: reading the largest model from a slow disk takes minutes. */
const LOAD_MS_MAX = 3_600_000;

/** Loads a model in a thread. `name`: its name in errors. */
async function load({ path }: MemoryFile, name: string): Promise<LoadedModel> {
  const lane = new Lane<LoadRequest>({
    openThread: () => openThread(THREAD, null),
    msMax: LOAD_MS_MAX,
    sizeMax: 1,
    words: { thread: "a model's loader", unit: "models", done: "loaded" },
  });
  try {
    return (await lane.run({ path, name }, 1, new AbortController().signal)) as LoadedModel;
  } finally {
    lane.close();
  }
}
