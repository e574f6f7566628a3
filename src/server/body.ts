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
import { assert } from "../core/base/assert.ts";
import type { Later } from "../core/base/clock.ts";
import { AppError, errorText } from "../core/base/errors.ts";
import { wholeNumber } from "./route.ts";

export interface BodyOptions {
  readonly bytesMax: number;
  /** Maximum time from the first byte that is read to the last. */
  readonly msMax: number;
  readonly budget: BodyBudget;
  readonly later: Later;
}

export interface Body {
  readonly bytes: Uint8Array<ArrayBuffer>;
  /** Frees the bytes, and their room. */
  release(): void;
}

/** Decoders by content coding (RFC 9110, section 8.4.1). */
const UNPACKERS = {
  gzip: createGunzip,
  "x-gzip": createGunzip,
  deflate: createInflate,
  br: createBrotliDecompress,
  zstd: createZstdDecompress,
} as const;

/** First allocation for a body that does not name its length, or becomes longer. */
const FIRST_BYTES = 64 * 1024;
/** A body of which fewer than WINDOW_BYTES_MIN bytes arrive in this time is refused, so that it frees its room. */
const WINDOW_MS = 10_000;
const WINDOW_BYTES_MIN = 64 * 1024;

/** @throws AppError payload_too_large, unsupported_encoding, invalid_field, invalid_json, queue_full, request_timeout. */
export async function readBody(request: Request, options: BodyOptions): Promise<Body> {
  const { bytesMax, budget } = options;
  const encoding = request.headers.get("content-encoding")?.trim().toLowerCase() ?? "identity";
  if (encoding !== "identity" && !isUnpackable(encoding)) {
    const codings = Object.keys(UNPACKERS).join(", ");
    const message = `the body's content-encoding is ${encoding}, not one of ${codings}`;
    throw new AppError("unsupported_encoding", message);
  }
  const lengthHeader = request.body === null ? "0" : request.headers.get("content-length");
  const length = lengthHeader === null ? null : wholeNumber("content-length", lengthHeader);
  if (length !== null && length > bytesMax) throw tooLarge(`has ${length} bytes, beyond`, bytesMax);
  const expected = encoding === "identity" ? length : null;
  const room = await budget.take(expected ?? FIRST_BYTES, request.signal);
  try {
    const parts = partsOf(request, options);
    const problem = encoding === "identity" ? "has more than" : "unpacks to more than";
    let bytes = new Uint8Array(0);
    const collect = async (out: AsyncIterable<Uint8Array>) => {
      bytes = await collected(out, { expected, bytesMax, room, problem });
    };
    if (encoding === "identity") await collect(parts);
    else await pipeline(Readable.from(parts), UNPACKERS[encoding](), collect);
    return {
      bytes,
      release: () => {
        free(bytes);
        room.release();
      },
    };
  } catch (cause) {
    room.release();
    if (cause instanceof AppError || encoding === "identity") throw cause;
    throw new AppError("invalid_json", `the body is not ${encoding}: ${errorText(cause)}`, {
      cause,
    });
  }
}

function isUnpackable(encoding: string): encoding is keyof typeof UNPACKERS {
  return Object.hasOwn(UNPACKERS, encoding);
}

/** The body's bytes as they arrive. @throws AppError request_timeout. */
async function* partsOf(
  request: Request,
  { msMax, later }: BodyOptions,
): AsyncGenerator<Uint8Array> {
  if (request.body === null) return;
  const reader = request.body.getReader();
  const late = Promise.withResolvers<never>();
  late.promise.catch(() => {});
  let inWindow = 0;
  let cancel = () => {};
  const openWindow = (leftMs: number) => {
    inWindow = 0;
    const windowMs = Math.min(WINDOW_MS, leftMs);
    cancel = later(() => {
      const isLate = leftMs <= windowMs;
      if (!isLate && inWindow >= WINDOW_BYTES_MIN) return openWindow(leftMs - windowMs);
      const message = `the body did not come in ${(isLate ? msMax : windowMs) / 1000} s`;
      late.reject(new AppError("request_timeout", message));
    }, windowMs);
  };
  openWindow(msMax);
  try {
    for (;;) {
      const { done, value } = await Promise.race([reader.read(), late.promise]);
      if (done) return;
      inWindow += value.length;
      yield value;
    }
  } finally {
    cancel();
    reader.cancel().catch(() => {});
  }
}

async function collected(
  parts: AsyncIterable<Uint8Array>,
  about: { bytesMax: number; expected: number | null; room: Room; problem: string },
): Promise<Uint8Array<ArrayBuffer>> {
  const { bytesMax, expected, room, problem } = about;
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

/** Frees a buffer at once: the garbage collector underestimates the memory that it holds. */
function free({ buffer }: Uint8Array<ArrayBuffer>): void {
  // What another thread has taken is no longer here.
  if (!buffer.detached) buffer.transfer(0);
}

function tooLarge(problem: string, bytesMax: number): AppError {
  const message = `the body ${problem} the server's ${bytesMax} bytes`;
  return new AppError("payload_too_large", message);
}

export interface BodyBudgetOptions {
  readonly bytesMax: number;
  readonly waitMsMax: number;
  readonly later: Later;
  readonly nowMs: () => number;
}

export interface Room {
  /** Takes room up to `bytes`. It never waits, because other bodies wait for this one. @throws AppError queue_full. */
  grow(bytes: number): void;
  release(): void;
}

interface Waiting {
  readonly bytes: number;
  readonly enter: () => void;
}

/** Bodies larger than this share three quarters of the budget; the rest is for small ones. */
const SMALL_BYTES = 1024 * 1024;
const WAITING_MAX = 65_536;

export class BodyBudget {
  readonly #options: BodyBudgetOptions;
  #used = 0;
  #usedByLarge = 0;
  #changedMs = 0;
  /** Waiting bodies, first come, first served; a large one does not hold up the small ones behind it. */
  readonly #waiting = new Set<Waiting>();

  constructor(options: BodyBudgetOptions) {
    this.#options = options;
  }

  get used(): number {
    return this.#used;
  }

  /** How long no room has been taken or freed while a new body finds none; 0: there is room. */
  get stuckMs(): number {
    return this.#fits(FIRST_BYTES, 0) ? 0 : this.#options.nowMs() - this.#changedMs;
  }

  /** Waits for room. @throws AppError queue_full: there was none in time; interrupted: the client disconnected. */
  async take(bytes: number, signal: AbortSignal): Promise<Room> {
    if (!this.#fits(bytes, 0)) await this.#turn(bytes, signal);
    else this.#add(bytes);
    return this.#room(bytes);
  }

  #room(bytes: number): Room {
    let ownBytes = bytes;
    return {
      grow: (wanted) => {
        if (wanted <= ownBytes) return;
        if (!this.#fits(wanted, ownBytes)) throw this.#full();
        this.#add(ownBytes, -1);
        ownBytes = wanted;
        this.#add(ownBytes);
      },
      release: () => {
        this.#add(ownBytes, -1);
        ownBytes = 0;
        this.#admit();
      },
    };
  }

  /** `ownBytes`: room that the same body already has. A body always fits if it is the only one. */
  #fits(bytes: number, ownBytes: number): boolean {
    // A sum with what is no number never becomes one again.
    assert(Number.isSafeInteger(bytes) && bytes >= 0, `${bytes} is a number of bytes`);
    const { bytesMax } = this.#options;
    const others = this.#used - ownBytes;
    if (bytes <= SMALL_BYTES) return others === 0 || others + bytes <= bytesMax;
    const largeOthers = this.#usedByLarge - (ownBytes > SMALL_BYTES ? ownBytes : 0);
    return largeOthers === 0 || largeOthers + bytes <= 0.75 * bytesMax;
  }

  #add(bytes: number, sign: 1 | -1 = 1): void {
    this.#used += sign * bytes;
    if (bytes > SMALL_BYTES) this.#usedByLarge += sign * bytes;
    this.#changedMs = this.#options.nowMs();
  }

  /** Waits in the queue; when it resolves, the room is taken. */
  async #turn(bytes: number, signal: AbortSignal): Promise<void> {
    if (this.#waiting.size >= WAITING_MAX) throw this.#full();
    const turn = Promise.withResolvers<void>();
    const waiting = { bytes, enter: turn.resolve };
    const { later, waitMsMax } = this.#options;
    const cancel = later(() => turn.reject(this.#full()), waitMsMax);
    const leave = () => turn.reject(new AppError("interrupted", "the client disconnected"));
    signal.addEventListener("abort", leave, { once: true });
    this.#waiting.add(waiting);
    try {
      await turn.promise;
    } finally {
      this.#waiting.delete(waiting);
      cancel();
      signal.removeEventListener("abort", leave);
    }
  }

  #admit(): void {
    let isLargeStuck = false;
    for (const waiting of this.#waiting) {
      const isLarge = waiting.bytes > SMALL_BYTES;
      if (isLarge && isLargeStuck) continue;
      if (this.#fits(waiting.bytes, 0)) {
        this.#add(waiting.bytes);
        this.#waiting.delete(waiting);
        waiting.enter();
      } else if (isLarge) isLargeStuck = true;
      else return;
    }
  }

  #full(): AppError {
    const { bytesMax } = this.#options;
    const message = `request bodies of ${this.#used} bytes are being read, of ${bytesMax} at most`;
    return new AppError("queue_full", message);
  }
}
