// The SSD tier's files on a real disk. It owns one directory, named after this process, under the user's
// directory, which several pools and processes can share. It must never touch files of a live pool,
// and removes those of processes that died without removing them.

import { randomBytes } from "node:crypto";
import { mkdir, readdir, rm, unlink, writeFile } from "node:fs/promises";
import { hostname } from "node:os";
import { join, resolve } from "node:path";
import { assert } from "../core/base/assert.ts";
import { codeOf } from "./system.ts";

/**
 * Files in the pool's directory, by name. The directory is created with the first file. Every method rejects when the
 * operation failed; a write may have left a part of the file then.
 */
export interface TierFiles {
  /** Creates the file, or replaces it, with all of `bytes`. */
  write(name: string, bytes: ArrayBuffer): Promise<void>;
  /** Reads the whole file into a new buffer; null: it is not `bytes` long. Rejects if the file is missing. */
  read(name: string, bytes: number): Promise<ArrayBuffer | null>;
  /** Removes a file. A missing file is no error. */
  remove(name: string): Promise<void>;
  /** Removes the pool's directory, and everything in it. The files cannot be used afterwards. */
  removeAll(): Promise<void>;
}

/** Only the owner may read KV: prompts and responses can be reconstructed from it. */
const FOLDER_MODE = 0o700;
const FILE_MODE = 0o600;

const NAME_PREFIX = "foretoken-kv";

/** Directories of this process. One of an earlier process with the same id must not be taken for ours. */
const living = new Set<string>();

export class DirectoryTierFiles implements TierFiles {
  /** Absolute path; the first write creates it. */
  readonly directory: string;
  #removed = false;

  private constructor(directory: string) {
    this.directory = directory;
  }

  /**
   * A new, empty place for one pool under `parent`, which need not exist. Removes what dead processes of
   * this host left there. Never rejects: a directory that cannot be used shows when it is written to.
   */
  static async open(parent: string): Promise<DirectoryTierFiles> {
    const host = hostname().replaceAll(/[^A-Za-z0-9]/g, "_");
    const nonce = randomBytes(6).toString("hex");
    const directory = join(resolve(parent), `${NAME_PREFIX}-${host}-${process.pid}-${nonce}`);
    living.add(directory);
    await sweep(resolve(parent), host);
    return new DirectoryTierFiles(directory);
  }

  async write(name: string, bytes: ArrayBuffer): Promise<void> {
    assert(!this.#removed, "removed files are not written to");
    const absolute = join(this.directory, name);
    const view = new Uint8Array(bytes);
    try {
      await writeFile(absolute, view, { mode: FILE_MODE });
    } catch (error) {
      // The directory is made when it is missed, so that a write costs one call and a swept directory comes back.
      if (codeOf(error) !== "ENOENT") throw error;
      await mkdir(this.directory, { recursive: true, mode: FOLDER_MODE });
      await writeFile(absolute, view, { mode: FILE_MODE });
    }
  }

  async read(name: string, bytes: number): Promise<ArrayBuffer | null> {
    const file = Bun.file(join(this.directory, name));
    // The size is looked at first: a foreign file of any size must not be read into memory.
    if ((await file.stat()).size !== bytes) return null;
    const buffer = await file.slice(0, bytes).arrayBuffer();
    return buffer.byteLength === bytes ? buffer : null;
  }

  async remove(name: string): Promise<void> {
    try {
      await unlink(join(this.directory, name));
    } catch (error) {
      const code = codeOf(error);
      if (code !== "ENOENT" && code !== "ENOTDIR") throw error;
    }
  }

  async removeAll(): Promise<void> {
    this.#removed = true;
    await rm(this.directory, { recursive: true, force: true });
    living.delete(this.directory);
  }
}

/** Removes directories whose process has ended. Those of other hosts stay: their processes are unknown here. */
async function sweep(parent: string, host: string): Promise<void> {
  const names = await readdir(parent).catch(() => []);
  for (const name of names) {
    const match = /^(.+)-(\d+)-[0-9a-f]{12}$/.exec(name);
    if (match === null || match[1] !== `${NAME_PREFIX}-${host}`) continue;
    const directory = join(parent, name);
    const pid = Number(match[2]);
    const alive = pid === process.pid ? living.has(directory) : isAlive(pid);
    if (!alive) await rm(directory, { recursive: true, force: true }).catch(() => undefined);
  }
}

function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    // EPERM: it exists and belongs to somebody else.
    return codeOf(error) !== "ESRCH";
  }
}
