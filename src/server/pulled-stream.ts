// An answer that is written as its client reads: what waits is whatever it is made from, and one piece. A client that takes
// nothing for too long while there is something to take is dropped.

import { AppError } from "../core/base/errors.ts";

export interface PulledStream {
  readonly headers: Readonly<Record<string, string>>;
  /** Time without progress after which a client is dropped. */
  readonly stallMsMax: number;
  readonly after: (ms: number, run: () => void) => () => void;
  /** Aborts when the client has gone. */
  readonly signal?: AbortSignal;
  /** The next piece, once there is one. An error ends the stream. */
  readonly next: () => Promise<Piece>;
  /** Called whenever the client has taken everything written. */
  readonly took: () => void;
  /** Once. `gone`: the client has not had everything. */
  readonly closed: (gone: boolean) => void;
}

export interface Piece {
  readonly text: string;
  /** The reason why nothing follows: all is written, or it has failed. */
  readonly end?: "done" | "failed";
}

const encoder = new TextEncoder();

export function pulledStream(options: PulledStream): Response {
  const { headers, stallMsMax, after, signal, next, took } = options;
  let isClosed = false;
  let cancelStall = () => {};
  const close = (gone: boolean) => {
    if (isClosed) return;
    isClosed = true;
    cancelStall();
    signal?.removeEventListener("abort", leave);
    options.closed(gone);
  };
  const leave = () => close(true);
  if (signal?.aborted) leave();
  signal?.addEventListener("abort", leave, { once: true });
  const write = (controller: ReadableStreamDefaultController<Uint8Array>, piece: Piece) => {
    controller.enqueue(encoder.encode(piece.text));
    if (piece.end !== undefined) {
      controller.close();
      close(piece.end === "failed");
      return;
    }
    cancelStall = after(stallMsMax, () => {
      const message = `the client took nothing for ${stallMsMax} ms`;
      controller.error(new AppError("deadline_exceeded", message));
      leave();
    });
  };
  const stream = new ReadableStream<Uint8Array>(
    {
      async pull(controller) {
        cancelStall();
        took();
        try {
          const piece = await next();
          if (!isClosed) write(controller, piece);
        } catch (error) {
          leave();
          throw error;
        }
      },
      cancel: leave,
    },
    { highWaterMark: 1 },
  );
  return new Response(stream, { headers });
}
