// Bounds the bytes of all request bodies that are being read: a request without room waits, unread, and gets a 429
// if that lasts. A quarter is kept for small bodies, so that slow large ones never hold up the common ones.

import { AppError } from "../core/base/errors.ts";

export interface BodyBudgetOptions {
  readonly bytesMax: number;
  /** Maximum time that a body waits for room. */
  readonly waitMsMax: number;
  /** Runs `act` after `ms`; returns what prevents it. */
  readonly after: (ms: number, act: () => void) => () => void;
}

export interface Room {
  /** The body has `bytes` by now. @throws AppError queue_full: it does not wait, as others may wait for it. */
  grow(bytes: number): void;
  release(): void;
}

interface Waiting {
  readonly bytes: number;
  readonly enter: () => void;
}

/** Larger ones share three quarters of the budget. */
const SMALL_BYTES = 1024 * 1024;
const WAITING_MAX = 65_536;

export class BodyBudget {
  readonly #options: BodyBudgetOptions;
  #used = 0;
  #usedByLarge = 0;
  /** First come, first served; a large one does not hold up the small ones behind it. */
  readonly #waiting = new Set<Waiting>();

  constructor(options: BodyBudgetOptions) {
    this.#options = options;
  }

  get used(): number {
    return this.#used;
  }

  /** @throws AppError queue_full, after a while; interrupted: the client went. */
  async take(bytes: number, signal: AbortSignal): Promise<Room> {
    if (!this.#fits(bytes, 0)) await this.#turn(bytes, signal);
    else this.#add(bytes);
    return this.#room(bytes);
  }

  #room(bytes: number): Room {
    let held = bytes;
    return {
      grow: (wanted) => {
        if (wanted <= held) return;
        if (!this.#fits(wanted, held)) throw this.#full();
        this.#remove(held);
        held = wanted;
        this.#add(held);
      },
      release: () => {
        this.#remove(held);
        held = 0;
        this.#admit();
      },
    };
  }

  /** `held`: what the same body has already. A body always fits if it is the only one. */
  #fits(bytes: number, held: number): boolean {
    const { bytesMax } = this.#options;
    const others = this.#used - held;
    if (bytes <= SMALL_BYTES) return others === 0 || others + bytes <= bytesMax;
    const largeOthers = this.#usedByLarge - (held > SMALL_BYTES ? held : 0);
    return largeOthers === 0 || largeOthers + bytes <= 0.75 * bytesMax;
  }

  #add(bytes: number): void {
    this.#used += bytes;
    if (bytes > SMALL_BYTES) this.#usedByLarge += bytes;
  }

  #remove(bytes: number): void {
    this.#used -= bytes;
    if (bytes > SMALL_BYTES) this.#usedByLarge -= bytes;
  }

  /** The room is taken when it resolves. */
  async #turn(bytes: number, signal: AbortSignal): Promise<void> {
    if (this.#waiting.size >= WAITING_MAX) throw this.#full();
    const turn = Promise.withResolvers<void>();
    const waiting = { bytes, enter: turn.resolve };
    const cancel = this.#options.after(this.#options.waitMsMax, () => turn.reject(this.#full()));
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
