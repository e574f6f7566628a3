// The table of requests that may be asked again: completions (openai/retries.ts), those of an earlier process
// (openai/request-journals.ts), rollouts (rollouts/known.ts). What identifies a repetition is the same for all: an id that
// the client has put into the body, with the same path and the same body. A body is no identity: a client leaves long
// responses on purpose, and whoever got them next would get longer ones than were drawn. Nor is a header: a gateway gives
// all requests of a trace the same X-Request-Id. What nobody uses any more is kept within bounds, the oldest goes first.

import { AppError } from "../core/base/errors.ts";
import type { Kept } from "./kept.ts";

export interface RepeatsOptions<T> {
  /** Limit of what nobody uses. */
  readonly bytesMax: number;
  /** Whether a request, of the same body or another, begins anew under its id; else the same gets it, and another is refused. */
  readonly isFree: (value: T, isSame: boolean) => boolean;
  /** Called when nobody can ask for it any more; what is in use is not dropped. */
  readonly dropped: (value: T) => void;
}

interface Entry<T> {
  readonly name: string;
  /** Digest of the body. Cryptographic: the answer to one body must not be fetched with another. */
  readonly digest: string;
  readonly value: T;
  /** Memory that it was counted with when it came out of use; null: it is in use. */
  bytes: number | null;
}

export class Repeats<T> {
  readonly #options: RepeatsOptions<T>;
  /** The one that began, or came out of use, longest ago comes first. */
  readonly #entries = new Map<string, Entry<T>>();
  #bytes = 0;
  #idle = 0;

  constructor(options: RepeatsOptions<T>) {
    this.#options = options;
  }

  get kept(): Kept {
    return { bytes: this.#bytes, bytesMax: this.#options.bytesMax, count: this.#idle };
  }

  get inUse(): number {
    return this.#entries.size - this.#idle;
  }

  get(name: string): T | null {
    return this.#entries.get(name)?.value ?? null;
  }

  values(): T[] {
    return [...this.#entries.values()].map(({ value }) => value);
  }

  /** The value that the same request has begun; null: none. @throws AppError conflict with `problem`. */
  find(name: string, digest: string, problem = () => `${name} is taken`): T | null {
    const there = this.#entries.get(name);
    if (there === undefined) return null;
    const isSame = there.digest === digest;
    const isFree = this.#options.isFree(there.value, isSame);
    if (isSame && !isFree) return there.value;
    if (!isFree) throw new AppError("conflict", problem());
    this.#remove(there);
    return null;
  }

  add(name: string, digest: string, value: T): T {
    this.#entries.set(name, { name, digest, value, bytes: null });
    return value;
  }

  use(name: string): void {
    const entry = this.#entries.get(name);
    if (entry !== undefined) this.#wake(entry);
  }

  /** Ends its use; at most `countMax` are kept that are out of use. false: it is not in the table. */
  rest(name: string, value: T, bytes: number, countMax: number): boolean {
    const entry = this.#entries.get(name);
    if (entry?.value !== value) return false;
    this.#wake(entry);
    this.#entries.delete(name);
    this.#entries.set(name, entry);
    entry.bytes = bytes;
    this.#bytes += bytes;
    this.#idle += 1;
    this.trim(countMax);
    return true;
  }

  trim(countMax: number): void {
    for (const entry of this.#entries.values()) {
      if (this.#idle <= countMax && this.#bytes <= this.#options.bytesMax) return;
      if (entry.bytes !== null) this.#remove(entry);
    }
  }

  forget(isMeant: (value: T) => boolean): void {
    for (const entry of this.#entries.values()) if (isMeant(entry.value)) this.#remove(entry);
  }

  #wake(entry: Entry<T>): void {
    if (entry.bytes === null) return;
    this.#bytes -= entry.bytes;
    this.#idle -= 1;
    entry.bytes = null;
  }

  #remove(entry: Entry<T>): void {
    const isIdle = entry.bytes !== null;
    this.#wake(entry);
    this.#entries.delete(entry.name);
    if (isIdle) this.#options.dropped(entry.value);
  }
}
