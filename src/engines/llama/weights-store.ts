// The weights that this process has loaded, each once, shared by all of its engines and freed with the last
// lease. They are identified by their digest and not by their path: a weight update may rewrite the same file,
// and weights loaded from it before stay unchanged.

import { assert } from "../../core/base/assert.ts";
import { AppError } from "../../core/base/errors.ts";
import type { WeightEpoch, WeightsId } from "../../core/base/ids.ts";
import { Lane, openThread } from "../../text/job-lane.ts";
import { MemoryFile } from "./files.ts";
import type { SharedWeights } from "./messages.ts";
import type { LlamaLibrary } from "./native.ts";
import { LlamaTokenizer } from "./tokenizer.ts";
import { LlamaWeights } from "./weights.ts";
import { type ReadWeights, readWeights } from "./weights-reader.ts";
import type { LoadedModel, LoadRequest } from "./weights-thread.ts";

/** A holder's lease of loaded weights. */
export interface WeightsLease {
  readonly weights: SharedWeights;
  /** Another lease of the same weights. Call before `release`. */
  share(): WeightsLease;
  /** Ends the lease; further calls do nothing. */
  release(): void;
}

interface Loaded {
  readonly weights: SharedWeights;
  holders: number;
}

export interface OpenedStore {
  readonly store: WeightsStore;
  readonly first: WeightsLease;
  readonly tokenizer: LlamaTokenizer;
}

export class WeightsStore {
  readonly #library: LlamaLibrary;
  readonly #deterministic: boolean;
  /** The form of the first weights, which safetensors are converted to. */
  readonly #form = MemoryFile.create();
  readonly #loaded = new Map<WeightsId, Loaded>();
  /** Reads under way, by epoch and path: engines that load the same file at the same time read it once. */
  readonly #reading = new Map<string, Promise<Loaded>>();
  #isClosed = false;

  private constructor(library: LlamaLibrary, deterministic: boolean) {
    this.#library = library;
    this.#deterministic = deterministic;
  }

  /** Opens the store with its first weights, a GGUF file. @throws AppError model_unreadable: they cannot serve. */
  static async open(
    library: LlamaLibrary,
    { path, deterministic }: { path: string; deterministic: boolean },
  ): Promise<OpenedStore> {
    const store = new WeightsStore(library, deterministic);
    let first: WeightsLease | null = null;
    try {
      const read = await store.#read(path, { isFirst: true });
      try {
        first = store.#lease(await store.#load(path, read));
        return { store, first, tokenizer: LlamaTokenizer.load(library, read.file.path, path) };
      } finally {
        read.file.close();
      }
    } catch (error) {
      first?.release();
      store.close();
      throw error;
    }
  }

  /**
   * Loads a GGUF file, a .safetensors file or a folder of these as it is now, or waits for another call that
   * loads it for the same epoch. @throws AppError model_unreadable.
   */
  async acquire(path: string, epoch: WeightEpoch): Promise<WeightsLease> {
    if (this.#isClosed) throw new AppError("worker_failed", `${path}: the model is closed`);
    const name = `${epoch}:${path}`;
    const bring = () => this.#bring(name, path);
    return this.#lease(await this.#reading.getOrInsertComputed(name, bring));
  }

  /** Ends acquisition; leases stay valid. */
  close(): void {
    this.#isClosed = true;
    this.#form.close();
  }

  async #bring(name: string, path: string): Promise<Loaded> {
    try {
      const read = await this.#read(path, { isFirst: false });
      try {
        const loaded = await this.#load(path, read);
        const own = this.#lease(loaded);
        // All who wait for it have their leases then.
        setImmediate(() => own.release());
        return loaded;
      } finally {
        read.file.close();
      }
    } finally {
      this.#reading.delete(name);
    }
  }

  #read(path: string, { isFirst }: { isFirst: boolean }): Promise<ReadWeights> {
    return readWeights({ path, deterministic: this.#deterministic, isFirst, form: this.#form });
  }

  /** Loads weights, unless they are loaded already, from any path. The caller must take a lease at once. */
  async #load(name: string, { file, weights: id }: ReadWeights): Promise<Loaded> {
    const existing = this.#loaded.get(id);
    if (existing !== undefined) return existing;
    const { pointer, info } = await loadInThread({ path: file.path, name });
    const concurrent = this.#loaded.get(id);
    if (concurrent !== undefined) {
      LlamaWeights.share(this.#library, pointer, info).free();
      return concurrent;
    }
    const loaded: Loaded = { weights: { id, pointer, info }, holders: 0 };
    this.#loaded.set(id, loaded);
    return loaded;
  }

  #lease(loaded: Loaded): WeightsLease {
    loaded.holders += 1;
    let isReleased = false;
    return {
      weights: loaded.weights,
      share: () => {
        assert(!isReleased, "a claim is shared while it is held");
        return this.#lease(loaded);
      },
      release: () => {
        if (isReleased) return;
        isReleased = true;
        this.#letGo(loaded);
      },
    };
  }

  #letGo(loaded: Loaded): void {
    loaded.holders -= 1;
    assert(loaded.holders >= 0, "weights are released by their holders");
    if (loaded.holders > 0) return;
    const { id, pointer, info } = loaded.weights;
    this.#loaded.delete(id);
    LlamaWeights.share(this.#library, pointer, info).free();
  }
}

const THREAD = new URL("./weights-thread.ts", import.meta.url);
/** Deadline of a load: reading the largest model from a slow disk takes minutes. */
const LOAD_MS_MAX = 3_600_000;

async function loadInThread(request: LoadRequest): Promise<LoadedModel> {
  const lane = new Lane<LoadRequest>({
    openThread: () => openThread(THREAD, null),
    msMax: LOAD_MS_MAX,
    sizeMax: 1,
    words: { thread: "a model's loader", unit: "models", done: "loaded" },
  });
  try {
    return (await lane.run(request, 1, new AbortController().signal)) as LoadedModel;
  } finally {
    lane.close();
  }
}
