// Requests that killed workers, remembered for a while by their content: clients answer a 502 by sending the same
// request again, and each time it would kill two workers.

import type { Clock } from "../base/clock.ts";
import type { RolloutRequest } from "../request/buffer.ts";
import { promptKey } from "../request/prompt-key.ts";

/** Longer than clients' pauses between retries; short, for the judgement may have been wrong. */
const KEPT_MS = 60_000;
const KEPT_MAX = 256;

interface Entry {
  readonly untilMs: number;
  readonly message: string;
}

export class Quarantine {
  readonly #clock: Clock;
  /** The oldest first. */
  readonly #entries = new Map<string, Entry>();

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  add(request: RolloutRequest, message: string): void {
    const key = keyOf(request);
    if (key === null) return;
    this.#entries.delete(key);
    this.#entries.set(key, { untilMs: this.#clock.nowMs() + KEPT_MS, message });
    for (const oldest of this.#entries.keys()) {
      if (this.#entries.size <= KEPT_MAX) return;
      this.#entries.delete(oldest);
    }
  }

  /** Why an equal request was ended; null: none was, lately. */
  reason(request: RolloutRequest): string | null {
    if (this.#entries.size === 0) return null;
    const nowMs = this.#clock.nowMs();
    for (const [key, { untilMs }] of this.#entries) {
      if (untilMs > nowMs) break;
      this.#entries.delete(key);
    }
    const key = this.#entries.size === 0 ? null : keyOf(request);
    return key === null ? null : (this.#entries.get(key)?.message ?? null);
  }

  /** Other weights may run what these did not. */
  clear(): void {
    this.#entries.clear();
  }
}

/** null: it cannot be distinguished from others. */
function keyOf({ spec: { prompt, sampling } }: RolloutRequest): string | null {
  try {
    return `${promptKey(prompt)} ${JSON.stringify(sampling)}`;
  } catch {
    // Fields for the engine that are nested too deep.
    return null;
  }
}
