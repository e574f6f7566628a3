// The weights this process has loaded, each file once per epoch, shared by all its engines and freed when
// the last one lets go. A weight update may rewrite the same file, so the epoch is part of the name.

import { assert } from "../../base/assert.ts";
import { AppError } from "../../base/errors.ts";
import type { WeightEpoch } from "../../base/ids.ts";
import type { SharedWeights } from "./messages.ts";
import type { LlamaLibrary } from "./native.ts";
import { LlamaWeights } from "./weights.ts";
import type { LoadAnswer, LoadRequest } from "./weights-thread.ts";

/** One holder's claim on loaded weights. */
export interface WeightsLease {
  readonly weights: SharedWeights;
  /** Gives the claim back; only the first call counts. */
  release(): void;
}

interface Entry {
  readonly loading: Promise<SharedWeights>;
  holders: number;
}

export class WeightsStore {
  readonly #library: LlamaLibrary;
  readonly #base: string;
  readonly #entries = new Map<string, Entry>();

  /** `base`: the GGUF file whose form safetensors are converted to. */
  constructor(library: LlamaLibrary, base: string) {
    this.#library = library;
    this.#base = base;
  }

  /**
   * Loads a GGUF file, a .safetensors file or a folder of these, or joins who has loaded it for this epoch.
   * @throws AppError model_unreadable.
   */
  async acquire(path: string, epoch: WeightEpoch | null): Promise<WeightsLease> {
    const name = `${epoch}:${path}`;
    let entry = this.#entries.get(name);
    if (entry === undefined) {
      entry = { loading: loadInThread({ path, base: this.#base }), holders: 0 };
      this.#entries.set(name, entry);
    }
    const held = entry;
    held.holders += 1;
    try {
      const weights = await held.loading;
      let released = false;
      return {
        weights,
        release: () => {
          if (released) return;
          released = true;
          this.#letGo(name, held, weights);
        },
      };
    } catch (error) {
      held.holders -= 1;
      if (this.#entries.get(name) === held) this.#entries.delete(name);
      throw error;
    }
  }

  #letGo(name: string, entry: Entry, weights: SharedWeights): void {
    entry.holders -= 1;
    assert(entry.holders >= 0, "weights are released by their holders");
    if (entry.holders > 0) return;
    if (this.#entries.get(name) === entry) this.#entries.delete(name);
    LlamaWeights.share(this.#library, weights.pointer, weights.info).free();
  }
}

function loadInThread(request: LoadRequest): Promise<SharedWeights> {
  const thread = new Worker(new URL("./weights-thread.ts", import.meta.url).href);
  const loaded = new Promise<SharedWeights>((resolve, reject) => {
    thread.onmessage = ({ data }: MessageEvent<LoadAnswer>) => {
      if (data.kind === "loaded") resolve(data.weights);
      else reject(new AppError(data.code, data.message));
    };
    thread.onerror = (event) => {
      reject(new AppError("model_unreadable", `${request.path}: ${event.message}`));
    };
  });
  thread.postMessage(request);
  return loaded.finally(() => thread.terminate());
}
