// Work that takes too long for the serving thread: a lane is one thread that does jobs one after the other,
// and a queue of waiting jobs. A job that takes too long fails its request, and its thread is stopped.

import { AppError, type ErrorCode, errorText, InvalidFieldError } from "../core/base/errors.ts";
import { type OpenWait, waitMsMax } from "../core/base/waits.ts";

declare const self: Worker;

export type JobAnswer =
  | { readonly kind: "done"; readonly value: unknown }
  | {
      readonly kind: "failed";
      /** Code of the AppError; null: the error is a bug. */
      readonly code: ErrorCode | null;
      readonly message: string;
      /** The field that an InvalidFieldError names. */
      readonly field: { where: string; field: string; problem: string } | null;
    };

/** A thread that runs `serveJobs`. */
export interface JobThread<Job> {
  post(job: Job): void;
  /** Called once for each job that was posted. */
  listen(answered: (answer: JobAnswer) => void, died: (reason: string) => void): void;
  stop(): void;
}

/** Runs `module` in a thread; `opening` is the first message that it gets. Bytes of a job move there. */
export function openThread<Job>(module: URL, opening: unknown): JobThread<Job> {
  const thread = new Worker(module.href);
  thread.postMessage(opening);
  // A thread that waits keeps no process alive.
  thread.unref();
  return {
    post: (job) =>
      thread.postMessage(job, job instanceof Uint8Array ? [job.buffer as ArrayBuffer] : []),
    listen: (answered, died) => {
      thread.onmessage = ({ data }: MessageEvent<JobAnswer>) => answered(data);
      thread.onerror = ({ message }) => died(message);
    },
    // Native code runs to its end first; nothing waits for that.
    stop: () => thread.terminate(),
  };
}

/** Does a job; buffers in `moves` are transferred to the caller, not copied. */
type Run<Job> = (job: Job, moves: ArrayBuffer[]) => unknown;

/** Serves jobs in the thread: `open` makes the job's function from the opening message. */
export function serveJobs<Opening, Job>(open: (opening: Opening) => Run<Job>): void {
  let run: Run<Job> | null = null;
  self.onmessage = ({ data }: MessageEvent<unknown>) => {
    if (run !== null) {
      const moves: ArrayBuffer[] = [];
      self.postMessage(answerOf(run, data as Job, moves), moves);
    } else {
      try {
        run = open(data as Opening);
      } catch (error) {
        run = () => {
          throw error;
        };
      }
    }
  };
}

function answerOf<Job>(run: Run<Job>, job: Job, moves: ArrayBuffer[]): JobAnswer {
  try {
    return { kind: "done", value: run(job, moves) };
  } catch (error) {
    const code = error instanceof AppError ? error.code : null;
    const failed = { kind: "failed", code, message: errorText(error) } as const;
    if (!(error instanceof InvalidFieldError)) return { ...failed, field: null };
    const { where, field, problem } = error;
    return { ...failed, field: { where, field, problem } };
  }
}

export interface LaneOptions<Job> {
  readonly openThread: () => JobThread<Job>;
  /** Time limit of one job, from the start of its work. */
  readonly msMax: number;
  /** Limit of the summed sizes of waiting jobs. */
  readonly sizeMax: number;
  /** Words for messages, such as "the tokenizer", "characters" and "encoded". */
  readonly words: { readonly thread: string; readonly unit: string; readonly done: string };
  /** A job that has waited longer is refused when its turn comes. Default: as `WAITS` has it. */
  readonly waitMsMax?: number;
}

const QUEUE_MS_MAX = waitMsMax("thread_queue");
/** Limit of waiting jobs: as many as a sidecar's requests. */
const WAITING_MAX = 65_536;

interface Waiting<Job> {
  readonly job: Job;
  readonly size: number;
  readonly sinceMs: number;
  readonly resolve: (value: unknown) => void;
  readonly reject: (error: unknown) => void;
}

/** One thread and its queue; the thread is opened when first needed, and again after it was stopped. */
export class Lane<Job> {
  readonly #options: LaneOptions<Job>;
  readonly #waiting = new Set<Waiting<Job>>();
  #size = 0;
  #thread: JobThread<Job> | null = null;
  #current: Waiting<Job> | null = null;
  #timer: ReturnType<typeof setTimeout> | undefined;

  constructor(options: LaneOptions<Job>) {
    this.#options = options;
  }

  /** Does a job in the thread, and throws its error. @throws AppError queue_full, deadline_exceeded, interrupted, worker_failed. */
  async run(job: Job, size: number, signal: AbortSignal): Promise<unknown> {
    const { sizeMax, words } = this.#options;
    if (this.#waiting.size >= WAITING_MAX || this.#size + size > sizeMax) {
      const message = `${this.#size} ${words.unit} wait to be ${words.done}, the server's maximum`;
      throw new AppError("queue_full", message);
    }
    const gone = new AppError("interrupted", "the client disconnected");
    if (signal.aborted) throw gone;
    const { promise, resolve, reject } = Promise.withResolvers<unknown>();
    const waiting = { job, size, sinceMs: performance.now(), resolve, reject };
    const leave = () => {
      if (this.#remove(waiting)) reject(gone);
    };
    this.#waiting.add(waiting);
    this.#size += size;
    signal.addEventListener("abort", leave, { once: true });
    this.#next();
    return await promise.finally(() => signal.removeEventListener("abort", leave));
  }

  /** The wait of the job whose turn comes next; null: none waits. */
  get wait(): OpenWait | null {
    const [next] = this.#waiting;
    if (next === undefined) return null;
    const { words, waitMsMax: msMax = QUEUE_MS_MAX } = this.#options;
    const reason = `${this.#waiting.size} wait there`;
    const about = { what: `a job of ${next.size} ${words.unit}`, forWhom: words.thread, reason };
    return { name: "thread_queue", ...about, msMax, sinceMs: next.sinceMs };
  }

  close(): void {
    const closed = new AppError("draining", "the server stops");
    for (const waiting of this.#waiting) waiting.reject(closed);
    this.#waiting.clear();
    this.#size = 0;
    this.#abandon(closed);
  }

  /** Removes a job from the queue; false: it was not in it any more. */
  #remove(waiting: Waiting<Job>): boolean {
    if (!this.#waiting.delete(waiting)) return false;
    this.#size -= waiting.size;
    return true;
  }

  /** Takes the first job that has not waited too long, and refuses those before it. */
  #taken(): Waiting<Job> | null {
    const { words, waitMsMax = QUEUE_MS_MAX } = this.#options;
    for (const next of this.#waiting) {
      this.#remove(next);
      if (performance.now() - next.sinceMs <= waitMsMax) return next;
      const problem = `${next.size} ${words.unit} waited ${waitMsMax / 1000} s to be ${words.done}`;
      next.reject(new AppError("deadline_exceeded", problem));
    }
    return null;
  }

  #next(): void {
    const next = this.#current === null ? this.#taken() : null;
    if (next === null) return;
    const { msMax, words } = this.#options;
    this.#current = next;
    this.#timer = setTimeout(() => {
      const message = `${next.size} ${words.unit} were not ${words.done} in ${msMax / 1000} s`;
      this.#abandon(new AppError("deadline_exceeded", message));
    }, msMax);
    this.#thread ??= this.#open();
    this.#thread.post(next.job);
  }

  #open(): JobThread<Job> {
    const { openThread: open, words } = this.#options;
    const thread = open();
    // What a thread says that was stopped is about no job any more.
    thread.listen(
      (answer) => thread === this.#thread && this.#answered(answer),
      (reason) => {
        const message = `the thread of ${words.thread}: ${reason}`;
        if (thread === this.#thread) this.#abandon(new AppError("worker_failed", message));
      },
    );
    return thread;
  }

  #answered(answer: JobAnswer): void {
    const current = this.#ended();
    if (answer.kind === "done") current?.resolve(answer.value);
    else current?.reject(errorOf(answer));
    this.#next();
  }

  #abandon(error: AppError): void {
    this.#thread?.stop();
    this.#thread = null;
    this.#ended()?.reject(error);
    this.#next();
  }

  #ended(): Waiting<Job> | null {
    const current = this.#current;
    this.#current = null;
    clearTimeout(this.#timer);
    return current;
  }
}

function errorOf({ code, message, field }: Extract<JobAnswer, { kind: "failed" }>): Error {
  if (field !== null) return new InvalidFieldError(field);
  return code === null ? new Error(message) : new AppError(code, message);
}
