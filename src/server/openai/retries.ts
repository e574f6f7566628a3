// Makes repeated requests harmless. What identifies a repetition is the same in all tables of them: an id that the client
// has put into the body (`request_id`, SGLang's `rid`, the `id` of a rollout), with the same path and the same body.
//
//  - With an id: the same body again gets the same responses, while they are generated and for a while after, whether
//    or not its client is still there.
//  - Without one every request is a draw of its own, and ends with its client. A body is no identity: a client leaves
//    long responses on purpose, and whoever got them next would get longer ones than were drawn. Nor is a header: a
//    gateway gives all requests of a trace the same X-Request-Id.
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
  readonly leftMax: number;
  /** Limit of jobs without a client, prompts and texts included. */
  readonly keptBytesMax: number;
}

export interface RetryOptions extends RetryLimits {
  readonly after: (ms: number, run: () => void) => () => void;
}

export interface RetryKey {
  readonly path: string;
  /** The id in the body; null: there is none. */
  readonly id: string | null;
  /** Digest of the body. Cryptographic: the answer to one body must not be fetched with another. */
  readonly digest: string;
}

/** One client's hold on a job. */
export interface Lease {
  readonly job: Job;
  /** The client has everything, or has left. */
  release(): void;
}

/** A job that can be asked for again. */
interface Entry {
  readonly name: string;
  readonly digest: string;
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
    const { id, digest } = key;
    if (id === null) {
      const job = begin();
      return { job, release: () => job.forget() };
    }
    const name = nameOf(key);
    const found = this.#namedLike(key);
    const entry = found ?? { name, digest, job: begin(), clients: 0, bytes: 0, cancelExpiry: null };
    this.#named.set(name, entry);
    this.#wake(entry);
    entry.clients += 1;
    let isReleased = false;
    const release = () => {
      if (isReleased) return;
      isReleased = true;
      entry.clients -= 1;
      if (entry.clients === 0) this.#left(entry);
    };
    return { job: entry.job, release };
  }

  /** New weights: results of the old ones are not given to new clients. */
  clear(): void {
    for (const entry of [...this.#idle]) this.#remove(entry);
    for (const [name, { job }] of this.#named) if (job.isDone) this.#named.delete(name);
  }

  #namedLike(key: RetryKey): Entry | null {
    const there = this.#named.get(nameOf(key));
    if (there === undefined) return null;
    if (there.digest === key.digest && !there.job.isAborted) return there;
    if (!there.job.isDone) {
      const message = `request_id: another request with the id ${JSON.stringify(key.id)} is being served`;
      throw new AppError("conflict", message);
    }
    this.#remove(there);
    return null;
  }

  #left(entry: Entry): void {
    const { name, job } = entry;
    // Nobody can ask for it again.
    if (this.#named.get(name) !== entry) {
      job.forget();
      return;
    }
    const { graceMs, leftMax, keptBytesMax, after } = this.#options;
    this.#idle.add(entry);
    entry.bytes = job.bytes;
    this.#keptBytes += entry.bytes;
    entry.cancelExpiry = after(graceMs, () => this.#remove(entry));
    for (const oldest of this.#idle) {
      if (this.#idle.size <= leftMax && this.#keptBytes <= keptBytesMax) return;
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
    if (this.#named.get(entry.name) === entry) this.#named.delete(entry.name);
    if (entry.clients === 0) entry.job.forget();
  }
}

export function nameOf({ path, id }: Pick<RetryKey, "path" | "id">): string {
  return `${path} ${id}`;
}
