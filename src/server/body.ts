// A request's body as it was meant: read and unpacked up to the server's limit, within the budget of all bodies, and in
// time. Nothing of a body is read before there is room for it, and an unpacked byte counts like any other.

import { Readable } from "node:stream";
import { pipeline } from "node:stream/promises";
import {
  createBrotliDecompress,
  createGunzip,
  createInflate,
  createZstdDecompress,
} from "node:zlib";
import { AppError } from "../core/base/errors.ts";
import type { BodyBudget, Room } from "./body-budget.ts";

export interface BodyLimits {
  readonly bytesMax: number;
  /** From the first byte that is read to the last. */
  readonly msMax: number;
}

export interface BodyOptions extends BodyLimits {
  readonly budget: BodyBudget;
  readonly after: (ms: number, act: () => void) => () => void;
}

export interface Body {
  readonly bytes: Uint8Array<ArrayBuffer>;
  release(): void;
}

/** By the names of RFC 9110, section 8.4.1. */
const UNPACKERS = {
  gzip: createGunzip,
  "x-gzip": createGunzip,
  deflate: createInflate,
  br: createBrotliDecompress,
  zstd: createZstdDecompress,
} as const;

/** Of a body that does not say how long it is, or becomes longer. */
const FIRST_BYTES = 64 * 1024;
/** A client that sends less than this in that time holds room for nothing. */
const WINDOW_MS = 10_000;
const WINDOW_BYTES_MIN = 64 * 1024;

/**
 * @throws AppError payload_too_large, unsupported_encoding, invalid_json (it does not unpack), queue_full (no room),
 * request_timeout.
 */
export async function readBody(request: Request, options: BodyOptions): Promise<Body> {
  const { bytesMax, budget } = options;
  const encoding = request.headers.get("content-encoding")?.trim().toLowerCase() ?? "identity";
  if (encoding !== "identity" && !isUnpackable(encoding)) {
    const known = Object.keys(UNPACKERS).join(", ");
    const message = `the body's content-encoding is ${encoding}, not one of ${known}`;
    throw new AppError("unsupported_encoding", message);
  }
  const length = lengthOf(request);
  if (length !== null && length > bytesMax) throw tooLarge(`has ${length} bytes, beyond`, bytesMax);
  const isPlain = encoding === "identity";
  const expected = isPlain ? length : null;
  const room = await budget.take(expected ?? FIRST_BYTES, request.signal);
  try {
    const parts = partsOf(request, options);
    const collecting = { expected, bytesMax, room };
    const bytes = isPlain
      ? await collected(parts, collecting)
      : await unpacked(parts, encoding, collecting);
    return {
      bytes,
      release: () => {
        free(bytes);
        room.release();
      },
    };
  } catch (error) {
    room.release();
    throw error;
  }
}

function isUnpackable(encoding: string): encoding is keyof typeof UNPACKERS {
  return Object.hasOwn(UNPACKERS, encoding);
}

function lengthOf(request: Request): number | null {
  if (request.body === null) return 0;
  const said = request.headers.get("content-length");
  return said === null ? null : Number(said);
}

async function* partsOf(
  request: Request,
  { msMax, after }: BodyOptions,
): AsyncGenerator<Uint8Array> {
  if (request.body === null) return;
  const reader = request.body.getReader();
  const late = Promise.withResolvers<never>();
  late.promise.catch(() => {});
  const fail = (seconds: number) => {
    const message = `the body did not come in ${seconds} s`;
    late.reject(new AppError("request_timeout", message));
  };
  let inWindow = 0;
  let cancelWindow = () => {};
  const openWindow = () => {
    inWindow = 0;
    cancelWindow = after(WINDOW_MS, () => {
      if (inWindow < WINDOW_BYTES_MIN) fail(WINDOW_MS / 1000);
      else openWindow();
    });
  };
  openWindow();
  const cancelAll = after(msMax, () => fail(msMax / 1000));
  try {
    for (;;) {
      const { done, value } = await Promise.race([reader.read(), late.promise]);
      if (done) return;
      inWindow += value.length;
      yield value;
    }
  } finally {
    cancelWindow();
    cancelAll();
    reader.cancel().catch(() => {});
  }
}

interface Collecting {
  readonly bytesMax: number;
  readonly expected: number | null;
  readonly room: Room;
}

/** @throws AppError payload_too_large, queue_full. */
async function collected(
  parts: AsyncIterable<Uint8Array>,
  { bytesMax, expected, room }: Collecting,
  problem = "has more than",
): Promise<Uint8Array<ArrayBuffer>> {
  let bytes = new Uint8Array(expected ?? FIRST_BYTES);
  let length = 0;
  try {
    for await (const part of parts) {
      const end = length + part.length;
      if (end > bytesMax) throw tooLarge(problem, bytesMax);
      if (end > bytes.length) {
        const larger = Math.min(bytesMax, Math.max(end, 2 * bytes.length));
        // While the bytes are copied both are there.
        room.grow(bytes.length + larger);
        const copy = new Uint8Array(larger);
        copy.set(bytes.subarray(0, length));
        free(bytes);
        bytes = copy;
      }
      bytes.set(part, length);
      length = end;
    }
    return bytes.subarray(0, length);
  } catch (error) {
    free(bytes);
    throw error;
  }
}

/** At once: the garbage collector does not know in time how much hangs on it. */
function free({ buffer }: Uint8Array<ArrayBuffer>): void {
  // What another thread has taken is no longer here.
  if (!buffer.detached) buffer.transfer(0);
}

/** @throws AppError as `collected`; invalid_json. */
async function unpacked(
  parts: AsyncIterable<Uint8Array>,
  encoding: keyof typeof UNPACKERS,
  collecting: Collecting,
): Promise<Uint8Array<ArrayBuffer>> {
  let bytes = new Uint8Array(0);
  const collect = async (out: AsyncIterable<Uint8Array>) => {
    bytes = await collected(out, collecting, "unpacks to more than");
  };
  try {
    await pipeline(Readable.from(parts), UNPACKERS[encoding](), collect);
    return bytes;
  } catch (cause) {
    if (cause instanceof AppError) throw cause;
    const reason = cause instanceof Error ? cause.message : String(cause);
    throw new AppError("invalid_json", `the body is not ${encoding}: ${reason}`, { cause });
  }
}

function tooLarge(problem: string, bytesMax: number): AppError {
  const message = `the body ${problem} the server's ${bytesMax} bytes`;
  return new AppError("payload_too_large", message);
}
