// A job as server-sent events. Text is built when the client reads it, from what the outputs hold by then: a
// slow client gets fewer, larger pieces, and costs no memory but the responses themselves.

import { AppError } from "../../core/base/errors.ts";
import { errorBody, internal } from "../http-errors.ts";
import { EVENTS, type PulledStream, pulledStream, type StreamPiece } from "../pulled-stream.ts";
import type { Job } from "./job.ts";
import { newCursor, type Output, type OutputCursor } from "./output.ts";

/** The events of an endpoint's stream. Each text is a number of whole `data:` events, or empty. */
export interface StreamView {
  head?(): string;
  /** The output since the cursor, which is moved to the end. */
  delta(output: Output, cursor: OutputCursor): string;
  /** Events after all outputs have ended; without `done`. */
  tail?(): string;
  /** The last event. Default: OpenAI's `data: [DONE]`. */
  readonly done?: string;
  /** The event of an error. Default: OpenAI's. */
  failed?(error: unknown): string;
}

export interface StreamOptions extends Omit<PulledStream, "headers" | "next"> {
  /** Called with an error while writing an answer: this client has failed, the others continue. */
  readonly crashed: (error: unknown) => void;
}

const DONE = "data: [DONE]\n\n";
/** Approximate size of a piece, in characters: what a socket's buffer takes at once. */
const PIECE_CHARACTERS = 65_536;
const HEADERS = {
  "content-type": `${EVENTS}; charset=utf-8`,
  "cache-control": "no-cache",
};

export function eventStream(job: Job, view: StreamView, options: StreamOptions): Response {
  const cursors = job.outputs.map(newCursor);
  /** Outputs that have parts which the client has not read. */
  const fresh = new Set(job.outputs);
  let open = job.outputs.length;
  let text: string | null = null;
  let failure: unknown = null;
  const failed = (error: unknown, before = ""): StreamPiece => {
    const written = view.failed?.(error) ?? `data: ${JSON.stringify(errorBody(error))}\n\n`;
    return { text: before + written, end: "failed" };
  };
  const piece = (): StreamPiece | null => {
    text ??= view.head?.() ?? "";
    for (const output of fresh) {
      const cursor = cursors[output.index];
      fresh.delete(output);
      if (cursor === undefined || cursor.isOver) continue;
      if (cursor.restarts !== output.restarts && cursor.tokens > 0) {
        const message = `response ${output.index} had to restart after a worker failed`;
        return failed(new AppError("worker_failed", message), text);
      }
      cursor.restarts = output.restarts;
      text += view.delta(output, cursor);
      if (cursor.isOver) open -= 1;
      if (text.length >= PIECE_CHARACTERS) break;
    }
    const written = text;
    text = "";
    if (open === 0) {
      return { text: written + (view.tail?.() ?? "") + (view.done ?? DONE), end: "done" };
    }
    return written === "" ? null : { text: written, hasMore: fresh.size > 0 };
  };
  const next = (): StreamPiece | null => {
    if (failure !== null) return failed(failure);
    try {
      return piece();
    } catch (error) {
      options.crashed(error);
      return failed(internal(error));
    }
  };
  let endReading = () => {};
  const closed = () => {
    endReading();
    options.closed();
  };
  const { response, news } = pulledStream({ ...options, headers: HEADERS, next, closed });
  endReading = job.read((outputs, error) => {
    failure ??= error;
    for (const output of outputs) fresh.add(output);
    news();
  });
  if (options.signal?.aborted === true) endReading();
  return response;
}
