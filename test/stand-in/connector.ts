// The stand-in's ExampleConnector, as vLLM 0.32's (example_connector.py) looks for, stores and loads KV in a folder, with
// its faults: by tokens alone, and with an end of the engine where the real one ends. The KV is a number that says
// which weights made it.

import { createHash } from "node:crypto";
import { existsSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";

const LAYERS = 2;

/** A store that several stand-ins ask, by blocks' hashes (salted), as MooncakeStoreConnector does. */
export interface StandInPool {
  readonly blocks: Set<number>;
  /** `save_decode_cache`: generated tokens' blocks too. */
  readonly savesOutput: boolean;
}

export class StandInConnector {
  readonly #folder: string;
  readonly #blockSize: number;
  /** What its KV is made by. */
  weights = 0;
  /** Tokens loaded, and among them those that other weights had made. */
  hitTokens = 0;
  staleTokens = 0;
  stores = 0;

  constructor(folder: string, blockSize: number) {
    this.#folder = folder;
    this.#blockSize = blockSize;
  }

  /** Tokens beyond the `computed` ones that it believes it can load. */
  matched(prompt: readonly number[], computed: number): number {
    const tokens = this.#aligned(prompt.length - 1);
    return existsSync(this.#path(prompt, tokens)) ? tokens - computed : 0;
  }

  /**
   * The prompt is scheduled; `isResumed`: again, after a preemption, which stores nothing. @throws Error where the real
   * one ends its engine.
   */
  scheduled(prompt: readonly number[], loaded: number, isResumed = false): void {
    if (isResumed && loaded <= 0) return;
    // The server's counters take no negative number.
    if (loaded < 0) throw new Error(`${loaded} tokens matched`);
    const tokens = this.#aligned(prompt.length);
    const path = this.#path(prompt, tokens);
    if (loaded > 0) {
      const files = readdirSync(path);
      if (files.length !== LAYERS) throw new Error(`${path} has ${files.length} layers`);
      for (const file of files) {
        const weights = weightsIn(join(path, file), tokens);
        if (weights !== this.weights) this.staleTokens += loaded / LAYERS;
      }
      this.hitTokens += loaded;
      return;
    }
    if (existsSync(this.#path(prompt, this.#aligned(prompt.length - 1)))) return;
    this.stores += 1;
    mkdirSync(path, { recursive: true });
    for (let layer = 0; layer < LAYERS; layer += 1) {
      writeFileSync(join(path, `model.layers.${layer}.safetensors`), fileOf(tokens, this.weights));
    }
  }

  #aligned(tokens: number): number {
    return Math.floor((tokens - 1) / this.#blockSize) * this.#blockSize;
  }

  #path(prompt: readonly number[], tokens: number): string {
    // Python's slice to a negative end, of a prompt of one token, is empty.
    const words = BigInt64Array.from(prompt.slice(0, Math.max(0, tokens)), BigInt);
    return join(this.#folder, createHash("md5").update(words).digest("hex"));
  }
}

function fileOf(tokens: number, weights: number): Buffer {
  const bytes = 8 * tokens;
  const header = JSON.stringify({
    kv_cache: { dtype: "F64", shape: [tokens, 1, 1], data_offsets: [0, bytes] },
  });
  const file = Buffer.alloc(8 + header.length + bytes);
  file.writeBigUInt64LE(BigInt(header.length), 0);
  file.write(header, 8, "latin1");
  for (let i = 0; i < tokens; i += 1) file.writeDoubleLE(weights, 8 + header.length + 8 * i);
  return file;
}

function weightsIn(path: string, tokens: number): number {
  const file = readFileSync(path);
  const header = Number(file.readBigUInt64LE(0));
  if (file.length !== 8 + header + 8 * tokens) throw new Error(`${path} has another shape`);
  return file.readDoubleLE(8 + header);
}
