// A job as server-sent events. Text is built when the client reads it, from what the outputs hold by then: a
// slow client gets fewer, larger pieces, and costs no memory but the responses themselves. One that takes
// nothing for too long while there is something to take is dropped.

import { AppError, errorText } from "../../core/base/errors.ts";
import { errorBody } from "../http-errors.ts";
import type { Job, JobReader } from "./job.ts";
import { type Cursor, newCursor, type Output } from "./output.ts";

/** How one endpoint writes its stream. Each text is a number of whole `data:` events, or empty. */
export interface StreamView {
  head?(): string;
  /** The output since the cursor, which is moved to the end. */
  delta(output: Output, cursor: Cursor): string;
  /** Events after all outputs have ended; without [DONE]. */
  tail?(): string;
}

export interface StreamOptions {
  /** Time without progress after which a client is dropped. */
  readonly stallMsMax: number;
  /** Called whenever the client has read everything written. */
  readonly took: () => void;
  /** Called with an error while writing an answer: this client has failed, the others continue. */
  readonly crashed: (error: unknown) => void;
  readonly after: (ms: number, run: () => void) => () => void;
  readonly closed: (gone: boolean) => void;
}

const DONE = "data: [DONE]\n\n";
/** Characters in one piece, about: what a socket's buffer takes at once. */
const PIECE_CHARACTERS = 65_536;

const encoder = new TextEncoder();

export function eventStream(job: Job, view: StreamView, options: StreamOptions): Response {
  const source = new EventSource(job, view, options);
  const stream = new ReadableStream<Uint8Array>(
    {
      start: (controller) => source.start(controller),
      pull: () => source.pull(),
      cancel: () => source.close(true),
    },
    { highWaterMark: 1 },
  );
  const headers = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
  };
  return new Response(stream, { headers });
}

class EventSource implements JobReader {
  readonly #job: Job;
  readonly #view: StreamView;
  readonly #options: StreamOptions;
  readonly #cursors: Cursor[];
  /** Outputs with something unread. */
  readonly #fresh = new Set<Output>();
  #controller: ReadableStreamDefaultController<Uint8Array> | null = null;
  #endReading: () => void = () => undefined;
  #cancelStall: (() => void) | null = null;
  #open: number;
  #hasHead = false;
  /** Enqueueing triggers the next pull at once. */
  #isSending = false;
  #isClosed = false;

  constructor(job: Job, view: StreamView, options: StreamOptions) {
    this.#job = job;
    this.#view = view;
    this.#options = options;
    this.#cursors = job.outputs.map(newCursor);
    this.#open = job.outputs.length;
  }

  start(controller: ReadableStreamDefaultController<Uint8Array>): void {
    this.#controller = controller;
    this.#endReading = this.#job.read(this);
    for (const output of this.#job.outputs) this.#fresh.add(output);
  }

  pull(): void {
    this.#options.took();
    this.#cancelStall?.();
    this.#cancelStall = null;
    this.#send();
  }

  news(outputs: readonly Output[]): void {
    for (const output of outputs) this.#fresh.add(output);
    if ((this.#controller?.desiredSize ?? 0) > 0) this.#send();
    else this.#cancelStall ??= this.#options.after(this.#options.stallMsMax, () => this.#drop());
  }

  failed(error: unknown): void {
    if (this.#isClosed) return;
    try {
      this.#enqueue(`data: ${JSON.stringify(errorBody(error))}\n\n`);
      this.#controller?.close();
    } catch (cause) {
      this.#options.crashed(cause);
    }
    this.close(true);
  }

  close(gone: boolean): void {
    if (this.#isClosed) return;
    this.#isClosed = true;
    this.#cancelStall?.();
    this.#endReading();
    this.#options.closed(gone);
  }

  #drop(): void {
    if (this.#isClosed) return;
    const message = `the client took nothing for ${this.#options.stallMsMax} ms`;
    this.#controller?.error(new AppError("deadline_exceeded", message));
    this.close(true);
  }

  #send(): void {
    if (this.#isClosed || this.#isSending) return;
    this.#isSending = true;
    try {
      this.#sendNews();
    } catch (error) {
      this.#options.crashed(error);
      this.failed(new AppError("internal_error", `a fault of the server: ${errorText(error)}`));
    } finally {
      this.#isSending = false;
    }
  }

  #sendNews(): void {
    let text = "";
    if (!this.#hasHead) {
      this.#hasHead = true;
      text = this.#view.head?.() ?? "";
    }
    for (const output of this.#fresh) {
      const cursor = this.#cursors[output.index];
      if (cursor === undefined || cursor.isOver) continue;
      if (cursor.restarts !== output.restarts) {
        if (cursor.tokens > 0) {
          this.#enqueue(text);
          const message = `response ${output.index} had to restart after a worker failed`;
          this.failed(new AppError("worker_failed", message));
          return;
        }
        cursor.restarts = output.restarts;
      }
      text += this.#view.delta(output, cursor);
      if (cursor.isOver) this.#open -= 1;
      this.#fresh.delete(output);
      if (text.length >= PIECE_CHARACTERS) break;
    }
    if (this.#open > 0) {
      this.#enqueue(text);
      return;
    }
    this.#enqueue(text + (this.#view.tail?.() ?? "") + DONE);
    this.#controller?.close();
    this.close(false);
  }

  #enqueue(text: string): void {
    if (text !== "") this.#controller?.enqueue(encoder.encode(text));
  }
}
