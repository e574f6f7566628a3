// The open streams of a worker: one request for each attempt at a chunk, read event by event. It ensures that nothing is
// read of an abandoned stream, and that the server aborts it. The worker interprets the events.

import { contain } from "../../core/base/contain.ts";
import { errorText } from "../../core/base/errors.ts";
import { AnswerReader } from "./answer.ts";
import type { ChunkRun } from "./chunk-run.ts";
import { type ChunkRequest, ENDPOINT_PATHS } from "./dialect.ts";
import { type EngineEvent, errorMessage } from "./stream-event.ts";
import type { ServerTally } from "./tally.ts";
import type { TrialServer } from "./trial.ts";

export type StreamEvent =
  | EngineEvent
  /** `message` null: the answer is complete. */
  | { readonly kind: "ended"; readonly message: string | null }
  /** The answer is too large or cannot be handled. `isFinal`: another attempt would not help. */
  | { readonly kind: "broken"; readonly message: string; readonly isFinal: boolean };

/** Returns whether to go on reading. */
type StreamListener = (run: ChunkRun, event: StreamEvent) => boolean;

export class Streams {
  readonly #server: TrialServer;
  readonly #tally: ServerTally;
  readonly #listener: StreamListener;
  #count = 0;
  /** Connections whose response is complete, until the server ends them; with the time of that. */
  readonly #lingering = new Map<() => void, number>();

  constructor(server: TrialServer, tally: ServerTally, listener: StreamListener) {
    this.#server = server;
    this.#tally = tally;
    this.#listener = listener;
  }

  get count(): number {
    return this.#count;
  }

  /** Sends the request of an attempt. @throws RangeError: it cannot be written as JSON. */
  open(run: ChunkRun, chunk: ChunkRequest): void {
    const { client, clock, limits, dialect, form } = this.#server;
    const hasReports = chunk.form === "whole" || chunk.expertsFrom !== null;
    const bytesMax = hasReports ? limits.reportBytesMax : limits.lineBytesMax;
    const { topLogprobs } = run.spec.sampling;
    const reader = new AnswerReader(chunk, bytesMax, (data) => dialect.read(data, topLogprobs));
    const take = (event: EngineEvent) => {
      run.heardMs = clock.nowMs();
      run.experts = reader.experts ?? run.experts;
      run.promptReport = reader.report ?? run.promptReport;
      return this.#listener(run, event);
    };
    const broken = (message: string, isFinal: boolean) =>
      this.#listener(run, { kind: "broken", message, isFinal });
    const guarded = (act: () => unknown) =>
      contain(act, (error) => broken(`its stream: ${errorText(error)}`, true));
    const path = ENDPOINT_PATHS[form.endpoint];
    const body = dialect.body(chunk, form);
    run.isOpen = true;
    run.abort = dialect.abort(chunk);
    run.heardMs = clock.nowMs();
    this.#count += 1;
    if (this.#count === 1) this.#tally.busy(true, clock.nowMs());
    const cancel = client.stream(
      { method: "POST", path, body },
      {
        data: (bytes) =>
          guarded(() => {
            if (run.cancel !== cancel || reader.push(bytes, take)) return;
            broken(`its answer, or a line of it, exceeds ${bytesMax} bytes`, hasReports);
          }),
        ended: (message) =>
          guarded(() => {
            if (this.#lingering.delete(cancel) || run.cancel !== cancel) return;
            run.cancel = null;
            if (chunk.form === "whole" && message === null) reader.end(take);
            else this.#listener(run, { kind: "ended", message });
          }),
        refused: (status, answer, retryAfterMs) =>
          guarded(() =>
            take({ kind: "error", status, message: errorMessage(answer), retryAfterMs }),
          ),
      },
    );
    run.cancel = cancel;
  }

  /** Closes the run's stream and aborts it on the server, or ends the run's pause. */
  close(run: ChunkRun): void {
    const { client, clock, limits } = this.#server;
    if (run.abort !== null && run.isOpen && run.cancel !== null) {
      void client.answer(run.abort, limits.checkMsMax);
    }
    run.cancel?.();
    run.cancel = null;
    if (!run.isOpen) return;
    run.isOpen = false;
    this.#count -= 1;
    if (this.#count === 0) this.#tally.busy(false, clock.nowMs());
  }

  /** Leaves the complete stream open until the server ends it, so that the connection can be reused. */
  linger(run: ChunkRun): void {
    if (run.cancel === null) return;
    this.#lingering.set(run.cancel, this.#server.clock.nowMs());
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
}
