// Makes repeated requests harmless. Trainers repeat a POST after a failure, most of them without an id:
//
//  - With an id: the same body again gets the same responses, while they are generated and for a while after.
//  - Without one: if the client goes away in the middle, its responses are finished as orphans, and the same
//    body sent again within the grace time takes them over. Two clients that are both there are two requests,
//    whatever they send: eight equal single requests are eight samples.
//
// Results of an earlier weight epoch and aborted ones are not reused: the request is generated again.
// Everything here has a bound.

import { AppError } from "../../core/base/errors.ts";
import type { Kept } from "../kept.ts";
import type { Job } from "./job.ts";

export interface RetryLimits {
  /** Time for which responses without a client continue, and finished ones are kept. */
  readonly graceMs: number;
  /** Jobs without a client, at most; the oldest one is given up for one more. */
  readonly orphansMax: number;
  /** Limit of jobs without a client, prompts and texts included. */
  readonly keptBytesMax: number;
}

export interface RetryOptions extends RetryLimits {
  readonly after: (ms: number, run: () => void) => () => void;
}

export interface RetryKey {
  readonly path: string;
  /** null: the client gave none. */
  readonly id: string | null;
  /** Digest of the body. Cryptographic: the answer to one body must not be fetched with another. */
  readonly digest: string;
  /** Without an id: whether responses continue without the client; otherwise they end with it. */
  readonly outlivesClient: boolean;
}

/** One client's hold on a job. */
export interface Lease {
  readonly job: Job;
  /** Exactly once. `gone`: the client left before it had everything. */
  release(gone: boolean): void;
}

interface Entry {
  readonly key: RetryKey;
  readonly job: Job;
  clients: number;
  /** Memory that the job was counted with when its last client left. */
  bytes: number;
  /** While it has no client: the timer that ends it. */
  cancelExpiry: (() => void) | null;
}

export class RetriedJobs {
  readonly #options: RetryOptions;
  readonly #named = new Map<string, Entry>();
  /** Entries without a client, oldest first. */
  readonly #idle = new Set<Entry>();
  #keptBytes = 0;

  constructor(options: RetryOptions) {
    this.#options = options;
  }

  /** Memory of jobs without a client. */
  get kept(): Kept {
    const { keptBytesMax: bytesMax } = this.#options;
    return { bytes: this.#keptBytes, bytesMax, count: this.#idle.size };
  }

  /** @throws AppError conflict: another request with this id is being served; and what `begin` throws. */
  lease(key: RetryKey, begin: () => Job): Lease {
    const found = key.id === null ? this.#orphanOf(key) : this.#namedLike(key);
    const entry = found ?? newEntry(key, begin());
    if (found === null && key.id !== null) this.#named.set(nameOf(key), entry);
    this.#wake(entry);
    entry.clients += 1;
    let isReleased = false;
    return {
      job: entry.job,
      release: (gone) => {
        if (isReleased) return;
        isReleased = true;
        entry.clients -= 1;
        if (entry.clients === 0) this.#left(entry, gone);
      },
    };
  }

  /** New weights: results of the old ones are not given to new clients. */
  clear(): void {
    for (const entry of [...this.#idle]) this.#remove(entry);
    for (const [name, { job }] of this.#named) if (job.isDone) this.#named.delete(name);
  }

  #namedLike(key: RetryKey): Entry | null {
    const there = this.#named.get(nameOf(key));
    if (there === undefined) return null;
    if (there.key.digest === key.digest && !there.job.isAborted) return there;
    if (!there.job.isDone) {
      const message = `request_id: another request with the id ${JSON.stringify(key.id)} is being served`;
      throw new AppError("conflict", message);
    }
    this.#remove(there);
    return null;
  }

  /** The oldest one of a client without an id that sent the same. */
  #orphanOf({ path, digest }: RetryKey): Entry | null {
    for (const entry of this.#idle) {
      const { key, job } = entry;
      const isSame = key.id === null && key.digest === digest && key.path === path;
      if (isSame && !job.isAborted) return entry;
    }
    return null;
  }

  #left(entry: Entry, gone: boolean): void {
    const { key, job } = entry;
    // Delivered, and no id under which it could be asked for again.
    if (key.id === null && !gone) return;
    const isKept = key.id === null ? key.outlivesClient : this.#named.get(nameOf(key)) === entry;
    if (!isKept) {
      job.forget();
      return;
    }
    const { graceMs, orphansMax, keptBytesMax, after } = this.#options;
    this.#idle.add(entry);
    entry.bytes = job.bytes;
    this.#keptBytes += entry.bytes;
    entry.cancelExpiry = after(graceMs, () => this.#remove(entry));
    for (const oldest of this.#idle) {
      if (this.#idle.size <= orphansMax && this.#keptBytes <= keptBytesMax) return;
      this.#remove(oldest);
    }
  }

  /** A client holds it again. */
  #wake(entry: Entry): void {
    entry.cancelExpiry?.();
    entry.cancelExpiry = null;
    if (this.#idle.delete(entry)) this.#keptBytes -= entry.bytes;
  }

  #remove(entry: Entry): void {
    this.#wake(entry);
    if (this.#named.get(nameOf(entry.key)) === entry) this.#named.delete(nameOf(entry.key));
    if (entry.clients === 0) entry.job.forget();
  }
}

export function nameOf({ path, id }: Pick<RetryKey, "path" | "id">): string {
  return `${path} ${id}`;
}

function newEntry(key: RetryKey, job: Job): Entry {
  return { key, job, clients: 0, bytes: 0, cancelExpiry: null };
}
