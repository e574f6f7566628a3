// The folder of one server with vLLM's ExampleConnector: names what lies there, and shows and hides it. The connector
// stores each prompt it is given and looks for each prompt it is given, both by tokens alone: no salt, no weights. So
// what a server stored is moved out of its sight at once, and shown to a server only for a request that is to load it.
//
// Shapes as of vLLM 0.32 (example_connector.py): <folder>/<md5 of the first n tokens as 64-bit integers>/, with one
// safetensors file for each layer of attention, whose first dimension is n.

import { createHash } from "node:crypto";
import {
  closeSync,
  existsSync,
  lstatSync,
  mkdirSync,
  openSync,
  readdirSync,
  readSync,
  renameSync,
  rmSync,
  type Stats,
  statSync,
  symlinkSync,
} from "node:fs";
import { rm } from "node:fs/promises";
import { join } from "node:path";

/** Inside the server's folder, so that a rename always suffices; no name of the connector's looks like it. */
const OWN = ".foretoken";
const NAME = /^[0-9a-f]{32}$/;
/** Of a safetensors file: more is none. */
const HEADER_BYTES_MAX = 1024 * 1024;

/** KV of the first `tokens` tokens of some text, out of every server's sight. */
export interface StoredKv {
  readonly name: string;
  readonly tokens: number;
  readonly path: string;
  /** On disk, as its layers' files are known to be. */
  readonly bytes: number;
}

/** What the connector calls the KV of the first `count` of `tokens`. */
export function storedName(tokens: Int32Array, count: number): string {
  // Little-endian 64-bit integers: each token, then a zero word.
  const words = new Int32Array(2 * count);
  for (let i = 0; i < count; i += 1) words[2 * i] = tokens[i] ?? 0;
  return createHash("md5").update(words).digest("hex");
}

export class KvFolder {
  readonly path: string;
  readonly #own: string;
  /** Files of one entry: one for each layer; 0: not seen yet. */
  #layers = 0;
  #bytesPerToken = 0;
  #serial = 0;

  constructor(path: string) {
    this.path = path;
    this.#own = join(path, OWN);
  }

  /** Whether the server would find it now. */
  isShown(name: string): boolean {
    return existsSync(join(this.path, name));
  }

  /** What the server has stored under the name becomes ours. null: nothing, or nothing of use; it is gone then. */
  take(name: string, tokens: number): StoredKv | null {
    const shown = join(this.path, name);
    if (!lstatOf(shown)?.isDirectory()) return null;
    this.#serial += 1;
    const path = join(this.#own, `${name}-${this.#serial}`);
    try {
      mkdirSync(this.#own, { recursive: true });
      renameSync(shown, path);
    } catch {
      return null;
    }
    const kv = { name, tokens, path, bytes: tokens * this.#bytesPerToken };
    if (tokens > 0 && kv.bytes > 0) return kv;
    const bytes = tokens === 0 ? null : this.#wholeBytes(kv);
    if (bytes !== null) return { ...kv, bytes };
    this.discard(path);
    return null;
  }

  /** Every layer is there, with all the tokens. */
  isWhole(kv: StoredKv): boolean {
    return this.#wholeBytes(kv) !== null;
  }

  /** false: it is not there any more. */
  show(kv: StoredKv): boolean {
    const shown = join(this.path, kv.name);
    if (existsSync(shown)) return true;
    if (!existsSync(kv.path)) return false;
    try {
      // What may be left here points at nothing.
      rmSync(shown, { force: true });
      mkdirSync(this.path, { recursive: true });
      symlinkSync(kv.path, shown);
      return true;
    } catch {
      return false;
    }
  }

  /** The server will not find it; what it stored itself there is lost. */
  hide(name: string): void {
    const shown = join(this.path, name);
    const entry = lstatOf(shown);
    if (entry === null) return;
    if (entry.isSymbolicLink()) rmSync(shown, { force: true });
    else this.#discardShown(name);
  }

  discard(path: string): void {
    void rm(path, { recursive: true, force: true }).catch(() => {});
  }

  /**
   * Everything goes: of other weights, or of another run. null: it is empty now; else why it may not be. Only what
   * the connector or this class has made is touched: the folder may be anybody's.
   */
  clear(): string | null {
    try {
      if (!existsSync(this.path)) return null;
      for (const name of readdirSync(this.path)) {
        if (NAME.test(name)) {
          if (lstatOf(join(this.path, name))?.isSymbolicLink()) this.hide(name);
          else this.#discardShown(name);
        }
      }
      for (const name of existsSync(this.#own) ? readdirSync(this.#own) : []) {
        this.discard(join(this.#own, name));
      }
      const left = readdirSync(this.path).filter((name) => NAME.test(name));
      return left.length === 0 ? null : `${this.path} still holds ${left.length} entries`;
    } catch (error) {
      return error instanceof Error ? error.message : String(error);
    }
  }

  /** Out of sight at once, off the disk when there is time. */
  #discardShown(name: string): void {
    this.#serial += 1;
    const path = join(this.#own, `${name}-${this.#serial}`);
    mkdirSync(this.#own, { recursive: true });
    renameSync(join(this.path, name), path);
    this.discard(path);
  }

  /** null: a layer is missing, or holds other than the tokens. */
  #wholeBytes({ path, tokens }: StoredKv): number | null {
    try {
      const files = readdirSync(path).filter((name) => name.endsWith(".safetensors"));
      let bytes = 0;
      for (const file of files) {
        if (storedTokens(join(path, file)) !== tokens) return null;
        bytes += statSync(join(path, file)).size;
      }
      // The engine writes all layers in one step: as many as ever were seen is all of them.
      this.#layers = Math.max(this.#layers, files.length);
      if (files.length === 0 || files.length < this.#layers) return null;
      this.#bytesPerToken = Math.ceil(bytes / tokens);
      return bytes;
    } catch {
      return null;
    }
  }
}

/** The first dimension of the tensor in a file of the connector; null: it is no such file. */
function storedTokens(path: string): number | null {
  const file = openSync(path, "r");
  try {
    const length = Buffer.alloc(8);
    if (readSync(file, length, 0, 8, 0) !== 8) return null;
    const bytes = Number(length.readBigUInt64LE(0));
    if (bytes > HEADER_BYTES_MAX) return null;
    const header = Buffer.alloc(bytes);
    if (readSync(file, header, 0, bytes, 8) !== bytes) return null;
    const { kv_cache: tensor } = JSON.parse(header.toString("utf8"));
    const [tokens] = tensor?.shape ?? [];
    return typeof tokens === "number" ? tokens : null;
  } finally {
    closeSync(file);
  }
}

function lstatOf(path: string): Stats | null {
  return lstatSync(path, { throwIfNoEntry: false }) ?? null;
}
