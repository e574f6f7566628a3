// The table of requests that may be asked again: completions (openai/submit.ts) and rollouts (rollouts/known.ts). What
// identifies a repetition is the same for both: an id that the client has put into the body, with the same path and the
// same body. A body is no identity: a client leaves long responses on purpose, and whoever got them next would get longer
// ones than were drawn. Nor is a header: a gateway gives all requests of a trace the same X-Request-Id. What nobody uses
// any more is kept within bounds, the oldest goes first.

import { AppError } from "../core/base/errors.ts";
import type { Kept } from "./kept.ts";

export interface RepeatsOptions<T> {
  /** Memory limit of entries that are not in use. */
  readonly bytesMax: number;
  /** Whether a request may begin anew under its id. If not, the same body gets `value`, and another body a conflict. */
  readonly isFree: (value: T, isSame: boolean) => boolean;
  /** Called when an entry out of use is removed, so that nobody can ask for it; not for one in use. */
  readonly dropped: (value: T) => void;
}

interface Entry<T> {
  readonly name: string;
  /** Digest of the body. Cryptographic: the answer to one body must not be fetched with another. */
  readonly digest: string;
  readonly value: T;
  /** Memory counted for the entry since it went out of use; null: it is in use. */
  bytes: number | null;
}

export class Repeats<T> {
  readonly #options: RepeatsOptions<T>;
  /** The entry that was added, or went out of use, longest ago comes first. */
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
    const entry = this.#entries.get(name);
    if (entry === undefined) return null;
    const isSame = entry.digest === digest;
    const isFree = this.#options.isFree(entry.value, isSame);
    if (isSame && !isFree) return entry.value;
    if (!isFree) throw new AppError("conflict", problem());
    this.#remove(entry);
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

  /** Takes the entry out of use and trims such entries to `countMax`. false: it is not in the table. */
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
