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
  /** Of jobs without a client, prompts and texts included, at most. */
  readonly keptBytesMax: number;
}

export interface RetryOptions extends RetryLimits {
  readonly after: (ms: number, run: () => void) => () => void;
}

export interface RetryKey {
  readonly path: string;
  /** null: the client gave none. */
  readonly id: string | null;
  /** Of the body. Cryptographic: the answer to one body must not be fetched with another. */
  readonly digest: string;
  /** Without an id: whether its responses become orphans; else they are given up with the client. */
  readonly adoptable: boolean;
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
  /** That it counted for when its last client left. */
  bytes: number;
  /** While it has no client: the timer that ends it. */
  cancelExpiry: (() => void) | null;
}

export class AdoptableJobs {
  readonly #options: RetryOptions;
  readonly #named = new Map<string, Entry>();
  /** By path and body; those of clients without an id. */
  readonly #orphans = new Map<string, Entry[]>();
  /** All entries without a client, oldest first. */
  readonly #idle = new Set<Entry>();
  #keptBytes = 0;

  constructor(options: RetryOptions) {
    this.#options = options;
  }

  /** Of entries that no client holds. */
  get kept(): Kept {
    const { keptBytesMax: bytesMax } = this.#options;
    return { bytes: this.#keptBytes, bytesMax, count: this.#idle.size };
  }

  /** @throws AppError conflict: another request with this id is being served; and what `begin` throws. */
  lease(key: RetryKey, begin: () => Job): Lease {
    const found = key.id === null ? this.#adopt(key) : this.#namedLike(key);
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

  #adopt(key: RetryKey): Entry | null {
    const left = this.#orphans.get(bodyName(key)) ?? [];
    return left.find(({ job }) => !job.isAborted) ?? null;
  }

  #left(entry: Entry, gone: boolean): void {
    const { key, job } = entry;
    // Delivered, and no id under which it could be asked for again.
    if (key.id === null && !gone) return;
    const isKept = key.id === null ? key.adoptable : this.#named.get(nameOf(key)) === entry;
    if (!isKept) {
      job.forget();
      return;
    }
    if (key.id === null) {
      const name = bodyName(key);
      const there = this.#orphans.get(name);
      if (there === undefined) this.#orphans.set(name, [entry]);
      else there.push(entry);
    }
    this.#idle.add(entry);
    entry.bytes = job.bytes;
    this.#keptBytes += entry.bytes;
    entry.cancelExpiry = this.#options.after(this.#options.graceMs, () => this.#remove(entry));
    const { orphansMax, keptBytesMax } = this.#options;
    while (this.#idle.size > orphansMax || this.#keptBytes > keptBytesMax) {
      const [oldest] = this.#idle;
      if (oldest === undefined) return;
      this.#remove(oldest);
    }
  }

  /** A client holds it again. */
  #wake(entry: Entry): void {
    entry.cancelExpiry?.();
    entry.cancelExpiry = null;
    if (!this.#idle.delete(entry)) return;
    this.#keptBytes -= entry.bytes;
    if (entry.key.id === null) this.#forgetOrphan(entry);
  }

  #remove(entry: Entry): void {
    this.#wake(entry);
    if (entry.key.id !== null && this.#named.get(nameOf(entry.key)) === entry) {
      this.#named.delete(nameOf(entry.key));
    }
    if (entry.clients === 0) entry.job.forget();
  }

  #forgetOrphan(entry: Entry): void {
    const name = bodyName(entry.key);
    const left = (this.#orphans.get(name) ?? []).filter((other) => other !== entry);
    if (left.length === 0) this.#orphans.delete(name);
    else this.#orphans.set(name, left);
  }
}

function nameOf({ path, id }: RetryKey): string {
  return `${path} ${id}`;
}

function bodyName({ path, digest }: RetryKey): string {
  return `${path} ${digest}`;
}

function newEntry(key: RetryKey, job: Job): Entry {
  return { key, job, clients: 0, bytes: 0, cancelExpiry: null };
}
