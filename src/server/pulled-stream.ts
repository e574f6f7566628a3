// An answer that is written as its client reads: what waits is whatever it is made from, and one piece. A client that takes
// nothing for too long while there is something to take is dropped.

import type { Later } from "../core/base/clock.ts";
import { AppError } from "../core/base/errors.ts";
import { oneLine } from "../core/base/json-line.ts";
import type { Exchange } from "./route.ts";

export interface PulledStream {
  readonly headers: Readonly<Record<string, string>>;
  /** Time without progress after which a client is dropped. */
  readonly stallMsMax: number;
  readonly later: Later;
  readonly signal?: AbortSignal;
  /** The next piece; null: there is none yet. An error ends the stream. */
  readonly next: () => StreamPiece | null;
  /** Called whenever the client has taken everything written. */
  readonly took: () => void;
  /** Called once, when the client has received everything or has disconnected. */
  readonly closed: () => void;
}

export interface StreamPiece {
  readonly text: string;
  readonly hasMore?: boolean;
  /** The reason why nothing follows: all is written, or it has failed. */
  readonly end?: "done" | "failed";
}

const encoder = new TextEncoder();

/** An answer that reads its pieces from `options`. Call `news` when there may be another piece. */
export function pulledStream(options: PulledStream): { response: Response; news: () => void } {
  const { headers, stallMsMax, later, signal, next, took } = options;
  let controller: ReadableStreamDefaultController<Uint8Array> | null = null;
  let isClosed = false;
  let isSending = false;
  let cancelStall: (() => void) | null = null;
  const close = () => {
    if (isClosed) return;
    isClosed = true;
    cancelStall?.();
    signal?.removeEventListener("abort", close);
    options.closed();
  };
  const fail = (error: unknown) => {
    if (isClosed) return;
    controller?.error(error);
    close();
  };
  const watch = () => {
    cancelStall ??= later(() => {
      fail(new AppError("deadline_exceeded", `the client took nothing for ${stallMsMax} ms`));
    }, stallMsMax);
  };
  const hasRoom = () => (controller?.desiredSize ?? 0) > 0;
  const send = () => {
    // Enqueueing pulls the next piece at once.
    if (isSending) return;
    isSending = true;
    try {
      let piece: StreamPiece | null = null;
      while (!isClosed && hasRoom()) {
        piece = next();
        if (piece === null) break;
        controller?.enqueue(encoder.encode(oneLine(piece.text)));
        if (piece.end === undefined) continue;
        controller?.close();
        close();
      }
      if (!isClosed && piece?.hasMore === true) watch();
    } catch (error) {
      fail(error);
    } finally {
      isSending = false;
    }
  };
  if (signal?.aborted) close();
  signal?.addEventListener("abort", close, { once: true });
  const stream = new ReadableStream<Uint8Array>(
    {
      start: (own) => {
        controller = own;
      },
      pull: () => {
        cancelStall?.();
        cancelStall = null;
        took();
        send();
      },
      cancel: close,
    },
    { highWaterMark: 1 },
  );
  const news = () => {
    if (isClosed) return;
    if (hasRoom()) send();
    else watch();
  };
  return { response: new Response(stream, { headers }), news };
}

export const EVENTS = "text/event-stream";
export const NDJSON = "application/x-ndjson";
/** Time after which a client that reads nothing is dropped. It is long: trainers compute between two lines. */
const LINES_STALL_MS_MAX = 600_000;

/** An answer of lines of JSON. */
export function lineStream(
  exchange: Exchange,
  options: Pick<PulledStream, "later" | "next"> & Partial<Pick<PulledStream, "headers" | "closed">>,
) {
  const { took, ended } = exchange.streams();
  return pulledStream({
    ...options,
    headers: { "content-type": NDJSON, ...options.headers },
    stallMsMax: LINES_STALL_MS_MAX,
    signal: exchange.signal,
    took,
    closed: () => {
      options.closed?.();
      ended();
    },
  });
}
