// Tokens as a server generates them, for programs in Node and Bun (docs/STREAM.md): one typed iterator over as many connections
// as it takes. A connection that breaks is opened again within a deadline and goes on where it was, by offset: no token is lost
// and none comes twice, and what the server no longer has is said. The queue between socket and reader is bounded.
//
// It is a package's entry, `foretoken/stream`: it imports `ws` and nothing of this program.

import { setTimeout as sleep } from "node:timers/promises";
import { WebSocket } from "ws";
import { Follower, StreamError, type StreamEvent, type StreamFilter } from "./follower.ts";

export { StreamError, type StreamEvent, type StreamFilter };

export interface FollowOptions {
  /** The server's API token. */
  readonly token?: string;
  /** Whether responses that exist already come first, from their first tokens. Default: only new tokens come. */
  readonly snapshot?: boolean;
  /** Aborts the iterator, which then ends without an error. */
  readonly signal?: AbortSignal;
  /** Time without a connection after which the iterator fails, in ms. Default: 30,000. */
  readonly lostMsMax?: number;
}

/** Limit of frames that wait for the reader; then the socket is not read, and the server drops a reader that stays slow. */
const FRAMES_MAX = 256;
/** Limit of a frame's size; the server's frames have at most 16,384 tokens. */
const FRAME_BYTES_MAX = 8 * 2 ** 20;
const OPEN_MS_MAX = 10_000;
/** Interval at which silence is checked: after one the server is pinged, after two more the connection is given up. */
const SILENCE_MS = 5_000;
const RETRY_MS = 50;
const RETRY_MS_MAX = 2_000;
const LOST_MS_MAX = 30_000;
/** Close codes of RFC 6455 with which the server refuses the subscription: no retry helps. */
const FATAL_CLOSES: readonly number[] = [1002, 1003, 1007, 1008, 1009];

/**
 * Follows a response, the responses of a group, or all. `url`: the server's, as `http://127.0.0.1:8000`. It ends when nothing
 * more can come. @throws StreamError: the server refuses it, or there was no connection for `lostMsMax`.
 */
export async function* followTokens(
  url: string,
  filter: StreamFilter,
  options: FollowOptions = {},
): AsyncGenerator<StreamEvent, void> {
  const { signal, snapshot = false, lostMsMax = LOST_MS_MAX } = options;
  const address = streamUrl(url);
  const follower = new Follower(filter, snapshot);
  let lostMs = performance.now();
  for (let failures = 0; !signal?.aborted; failures += 1) {
    const { frames, end } = connect(address, follower.subscribe(), options);
    let isLive = false;
    for await (const frame of frames) {
      for (const event of follower.read(frame)) {
        if (signal?.aborted) return;
        isLive = true;
        yield event;
      }
      if (follower.isOver) return;
      isLive ||= follower.isLive;
    }
    if (end.refusal !== null) throw new StreamError(end.refusal, end.reason);
    if (isLive) {
      failures = 0;
      lostMs = performance.now();
    }
    const forMs = performance.now() - lostMs;
    if (forMs > lostMsMax) {
      const about = `no stream from ${url} for ${Math.round(forMs)} ms: ${end.reason}`;
      throw new StreamError("unreachable", about);
    }
    // Half of the pause is chance, so that many readers do not come back at once.
    const pauseMs = Math.min(RETRY_MS_MAX, RETRY_MS * 2 ** failures);
    const pausing = sleep(pauseMs * (0.5 + Math.random() / 2), undefined, signal && { signal });
    await pausing.catch(() => undefined);
  }
}

/** The address of the stream on the server. @throws StreamError usage: `url` is not a server's. */
function streamUrl(url: string): string {
  const address = URL.canParse(url) ? new URL(url) : null;
  if (address === null || !/^(http|ws)s?:$/.test(address.protocol)) {
    throw new StreamError("usage", `the server's URL is "${url}"; it is as http://127.0.0.1:8000`);
  }
  const scheme = address.protocol.replace("http", "ws");
  return `${scheme}//${address.host}${address.pathname.replace(/\/$/, "")}/v1/stream`;
}

/** One WebSocket, whose frames can be read after its end, too. `end` is set by then. */
function connect(url: string, subscribe: string, { token, signal }: FollowOptions) {
  const headers = token === undefined ? {} : { authorization: `Bearer ${token}` };
  const limits = { maxPayload: FRAME_BYTES_MAX, handshakeTimeout: OPEN_MS_MAX };
  const socket = new WebSocket(url, { headers, perMessageDeflate: false, ...limits });
  /** `refusal`: code of a server that refused the client for good; null: it did not. */
  const end = { reason: "the connection was closed", refusal: null as string | null };
  const stop = () => socket.terminate();
  signal?.addEventListener("abort", stop, { once: true });
  let silences = 0;
  let isRead = true;
  // A connection whose other end is gone may look open for hours.
  const heart = setInterval(() => {
    if (socket.isPaused || socket.readyState !== WebSocket.OPEN) return;
    silences += 1;
    if (silences === 1) socket.ping();
    else if (silences > 2) {
      end.reason = "the server was silent";
      socket.terminate();
    }
  }, SILENCE_MS);
  socket.on("open", () => socket.send(subscribe));
  socket.on("pong", () => {
    silences = 0;
  });
  socket.on("unexpected-response", (_request, { statusCode = 0 }) => {
    end.reason = `the server answered ${statusCode}`;
    const isLater = statusCode === 429 || statusCode >= 500;
    if (!isLater) end.refusal = statusCode === 401 ? "unauthorized" : "refused";
    socket.terminate();
  });
  socket.on("error", ({ message }) => {
    end.reason = message;
  });
  const frames = new ReadableStream<string>(
    {
      start: (queue) => {
        socket.on("message", (data) => {
          if (!isRead) return;
          silences = 0;
          queue.enqueue(String(data));
          if ((queue.desiredSize ?? 0) <= 0) socket.pause();
        });
        socket.on("close", (code, reason) => {
          if (reason.length > 0) end.reason = String(reason);
          if (FATAL_CLOSES.includes(code)) end.refusal = "refused";
          clearInterval(heart);
          signal?.removeEventListener("abort", stop);
          if (isRead) queue.close();
        });
      },
      pull: () => {
        if (socket.isPaused) socket.resume();
      },
      cancel: () => {
        isRead = false;
        stop();
      },
    },
    { highWaterMark: FRAMES_MAX },
  );
  return { frames, end };
}
