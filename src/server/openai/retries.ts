// Jobs that may be asked for again (../repeats.ts): with an id in the body the same responses are given again, while they
// are generated and for a while after, whether or not their client is still there. Without one every request is a draw of
// its own, and ends with its client. Aborted jobs, and those of an earlier weight epoch, are generated again.

import type { Kept } from "../kept.ts";
import { Repeats } from "../repeats.ts";
import type { Job } from "./job.ts";

export interface RetryLimits {
  /** Time for which responses without a client continue, and finished ones are kept. */
  readonly graceMs: number;
  /** Limit of jobs without a client; one more ends the oldest. */
  readonly leftMax: number;
  /** Limit of jobs without a client, prompts and texts included. */
  readonly keptBytesMax: number;
}

type RetryOptions = RetryLimits & {
  readonly after: (ms: number, run: () => void) => () => void;
};

export interface RetryKey {
  readonly path: string;
  /** The id in the body; null: there is none. */
  readonly id: string | null;
  readonly digest: string;
}

/** One client's hold on a job. */
export interface Lease {
  readonly job: Job;
  /** Ends the hold: the client has everything, or has left. */
  release(): void;
}

interface SharedJob {
  readonly job: Job;
  clients: number;
  /** Cancels the timer that ends the job; null: it has a client. */
  cancelExpiry: (() => void) | null;
}

export class RetriedJobs {
  readonly #options: RetryOptions;
  readonly #jobs: Repeats<SharedJob>;

  constructor(options: RetryOptions) {
    this.#options = options;
    this.#jobs = new Repeats({
      bytesMax: options.keptBytesMax,
      isFree: ({ job }, isSame) => job.isAborted || (job.isDone && !isSame),
      dropped: ({ job, cancelExpiry }) => {
        cancelExpiry?.();
        job.forget();
      },
    });
  }

  /** Memory of jobs without a client. */
  get kept(): Kept {
    return this.#jobs.kept;
  }

  /** Takes over the id's job, or begins one. @throws AppError conflict: another body has this id; and what `begin` throws. */
  lease(key: RetryKey, begin: () => Job): Lease {
    if (key.id === null) {
      const job = begin();
      return { job, release: () => job.forget() };
    }
    const { id, digest } = key;
    const name = nameOf(key);
    const problem = () =>
      `request_id: another request with the id ${JSON.stringify(id)} is being served`;
    const found = this.#jobs.find(name, digest, problem);
    const fresh = () => ({ job: begin(), clients: 0, cancelExpiry: null });
    const shared = found ?? this.#jobs.add(name, digest, fresh());
    this.#jobs.use(name);
    shared.cancelExpiry?.();
    shared.clients += 1;
    let isReleased = false;
    const release = () => {
      if (isReleased) return;
      isReleased = true;
      shared.clients -= 1;
      if (shared.clients === 0) this.#left(name, shared);
    };
    return { job: shared.job, release };
  }

  /** Drops results of old weights, so that no new client gets them. */
  clear(): void {
    this.#jobs.forget(({ job, clients }) => clients === 0 || job.isDone);
  }

  #left(name: string, shared: SharedJob): void {
    const { graceMs, leftMax, after } = this.#options;
    shared.cancelExpiry = after(graceMs, () => this.#jobs.forget((one) => one === shared));
    if (this.#jobs.rest(name, shared, shared.job.bytes, leftMax)) return;
    shared.cancelExpiry();
    shared.job.forget();
  }
}

export function nameOf({ path, id }: Pick<RetryKey, "path" | "id">): string {
  return `${path} ${id}`;
}
