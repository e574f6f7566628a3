// The end of a server: all responses are made, and their clients have yet to read them.

import { AppError } from "../base/errors.ts";
import type { HttpServer } from "./http.ts";
import type { OpenStream } from "./open-streams.ts";

const DELIVERY_POLL_MS = 250;
const DELIVERY_TOLD_MS = 1_000;
/** All is made: a client that takes nothing of it for so long will not. */
const DELIVERY_STALL_MS = 30_000;

/** Resolves when every answer has gone out; @throws AppError deadline_exceeded: nobody takes what is left. */
export async function delivered(
  http: HttpServer,
  unread: (streams: readonly OpenStream[]) => void,
): Promise<void> {
  const startMs = performance.now();
  let isFinished = false;
  const finishing = http.finish().then(() => {
    isFinished = true;
  });
  let isTold = false;
  for (;;) {
    await Promise.race([finishing, Bun.sleep(DELIVERY_POLL_MS)]);
    if (isFinished) return;
    const nowMs = performance.now();
    const streams = http.streams();
    if (!isTold && nowMs - startMs > DELIVERY_TOLD_MS) {
      isTold = true;
      unread(streams);
    }
    const takenMs = streams.reduce((last, one) => Math.max(last, one.takenMs), startMs);
    if (nowMs - takenMs > DELIVERY_STALL_MS) {
      const message = `${streams.length} clients took nothing for ${DELIVERY_STALL_MS} ms`;
      throw new AppError("deadline_exceeded", message);
    }
  }
}
