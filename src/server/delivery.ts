// Waits at the end of a server until clients have read their finished responses.

import { AppError } from "../core/base/errors.ts";
import type { HttpServer, OpenStream } from "./http.ts";

const DELIVERY_POLL_MS = 250;
const DELIVERY_REPORT_MS = 1_000;
/** Time without progress after which a client counts as one that does not read. */
const DELIVERY_STALL_MS = 30_000;

/** Resolves when every answer has gone out; @throws AppError deadline_exceeded: the remaining clients do not read. */
export async function delivered(
  http: HttpServer,
  unread: (streams: readonly OpenStream[]) => void,
): Promise<void> {
  const startMs = performance.now();
  const finished = http.finish().then(() => true);
  let isReported = false;
  while (!(await Promise.race([finished, Bun.sleep(DELIVERY_POLL_MS).then(() => false)]))) {
    const nowMs = performance.now();
    const streams = http.streams();
    if (!isReported && nowMs - startMs > DELIVERY_REPORT_MS) {
      isReported = true;
      unread(streams);
    }
    const takenMs = Math.max(startMs, ...streams.map((stream) => stream.takenMs));
    if (nowMs - takenMs > DELIVERY_STALL_MS) {
      const message = `${streams.length} clients took nothing for ${DELIVERY_STALL_MS} ms`;
      throw new AppError("deadline_exceeded", message);
    }
  }
}
