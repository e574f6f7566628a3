// The open streams of a worker: one request for each attempt at a chunk, read event by event. It ensures that nothing is
// read of an abandoned stream, and that the server aborts it. The worker interprets the events.

import { contain } from "../../core/base/contain.ts";
import { errorText } from "../../core/base/errors.ts";
import type { ChunkRun } from "./chunk-run.ts";
import type { TimerClock } from "./clock.ts";
import {
  type ChunkRequest,
  ENDPOINT_PATHS,
  type EngineDialect,
  type RequestForm,
} from "./dialect.ts";
import type { HttpClient } from "./http.ts";
import type { VllmLimits } from "./limits.ts";
import { SseReader } from "./sse.ts";
import { type EngineEvent, errorMessage } from "./stream-event.ts";
import type { ServerTally } from "./tally.ts";
import { WholeReader, wholeAnswer, withoutExperts } from "./whole-answer.ts";

export interface StreamListener {
  /** Returns whether to go on reading. */
  event(run: ChunkRun, event: EngineEvent): boolean;
  /** The stream has ended. `message` null: it is complete. */
  ended(run: ChunkRun, message: string | null): void;
  /** The server refused the request. `retryAfterMs` null: not given. */
  refused(run: ChunkRun, status: number, message: string, retryAfterMs: number | null): void;
  /** The answer exceeds the limit; another attempt may bring less. */
  tooLarge(run: ChunkRun, message: string): void;
  /** The answer cannot be read, and another attempt would not help. */
  unreadable(run: ChunkRun, message: string): void;
}

export interface StreamParts {
  readonly client: HttpClient;
  readonly clock: TimerClock;
  readonly limits: VllmLimits;
  readonly dialect: EngineDialect;
  readonly form: RequestForm;
  readonly tally: ServerTally;
}

export class Streams {
  readonly #parts: StreamParts;
  readonly #listener: StreamListener;
  #count = 0;
  /** Connections whose response is complete, until the server ends them; with the time of that. */
  readonly #lingering = new Map<() => void, number>();

  constructor(parts: StreamParts, listener: StreamListener) {
    this.#parts = parts;
    this.#listener = listener;
  }

  get count(): number {
    return this.#count;
  }

  /** Sends the request of an attempt. @throws RangeError: it cannot be written as JSON. */
  open(run: ChunkRun, chunk: ChunkRequest): void {
    const { client, clock, limits, dialect, form } = this.#parts;
    const hasReports = chunk.form === "whole" || run.expertsFrom !== null;
    const bytesMax = hasReports ? limits.reportBytesMax : limits.lineBytesMax;
    const whole = chunk.form === "whole" ? new WholeReader(bytesMax) : null;
    const reader = new SseReader(bytesMax);
    const path = ENDPOINT_PATHS[form.endpoint];
    const body = dialect.body(chunk, form);
    const unreadable = (error: unknown) =>
      this.#listener.unreadable(run, `its stream: ${errorText(error)}`);
    const guarded = (act: () => void) => contain(act, unreadable);
    run.isOpen = true;
    run.abort = dialect.abort(chunk);
    run.heardMs = clock.nowMs();
    this.#count += 1;
    if (this.#count === 1) this.#parts.tally.busy(true, clock.nowMs());
    const cancel = client.stream(
      { method: "POST", path, body },
      {
        data: (bytes) =>
          guarded(() => {
            if (run.cancel !== cancel) return;
            const isTaken =
              whole?.push(bytes) ?? reader.push(bytes, (data) => this.#event(run, data));
            if (isTaken) return;
            const problem = `its answer, or a line of it, exceeds ${bytesMax} bytes`;
            if (hasReports) this.#listener.unreadable(run, problem);
            else this.#listener.tooLarge(run, problem);
          }),
        ended: (message) =>
          guarded(() => {
            if (this.#lingering.delete(cancel) || run.cancel !== cancel) return;
            run.cancel = null;
            if (whole !== null && message === null) this.#whole(run, whole.all());
            else this.#listener.ended(run, message);
          }),
        refused: (status, answer, retryAfterMs) =>
          guarded(() => this.#listener.refused(run, status, errorMessage(answer), retryAfterMs)),
      },
    );
    run.cancel = cancel;
  }

  /** Closes the run's stream and aborts it on the server, or ends the run's pause. */
  close(run: ChunkRun): void {
    const { client, limits } = this.#parts;
    if (run.abort !== null && run.isOpen && run.cancel !== null) {
      void client.answer(run.abort, limits.checkMsMax);
    }
    run.cancel?.();
    run.cancel = null;
    if (!run.isOpen) return;
    run.isOpen = false;
    this.#count -= 1;
    if (this.#count === 0) this.#parts.tally.busy(false, this.#parts.clock.nowMs());
  }

  /** Leaves the complete stream open until the server ends it, so that the connection can be reused. */
  linger(run: ChunkRun): void {
    if (run.cancel === null) return;
    this.#lingering.set(run.cancel, this.#parts.clock.nowMs());
    run.cancel = null;
  }

  /** Closes connections that have lingered since before `sinceMs`. */
  closeLingering(sinceMs: number): void {
    for (const [cancel, fromMs] of this.#lingering) {
      if (fromMs > sinceMs) continue;
      this.#lingering.delete(cancel);
      cancel();
    }
  }

  #event(run: ChunkRun, data: Buffer): boolean {
    run.heardMs = this.#parts.clock.nowMs();
    const { experts, rest } = withoutExperts(run, data);
    run.experts = experts ?? run.experts;
    return this.#listener.event(run, this.#read(run, rest));
  }

  #whole(run: ChunkRun, data: Buffer): void {
    const { experts, rest } = withoutExperts(run, data);
    const { events, report } = wholeAnswer(rest, (event) => this.#read(run, event));
    run.experts = experts;
    run.promptReport = report;
    for (const event of events) if (!this.#listener.event(run, event)) return;
  }

  #read(run: ChunkRun, data: Buffer): EngineEvent {
    return this.#parts.dialect.read(data, run.spec.sampling.topLogprobs);
  }
}
