// Measures a context with sequences of its own, before any request is there: the real steps behind the
// step-cost profile, and the size of KV. Once closed it has left every stream empty.

import { assert } from "../../core/base/assert.ts";
import type { Clock } from "../../core/base/clock.ts";
import type { LlamaContext } from "./context.ts";
import type { StepProbe } from "./step-cost.ts";

/** KV of each scratch sequence: about the middle of a short response, as attention's cost grows with it. */
const PROBE_TOKENS = 96;
const PROBE_CHUNK = 32;

export class EngineProbe implements StepProbe {
  readonly slots: number;
  readonly #context: LlamaContext;
  readonly #clock: Clock;
  /** KV of PROBE_TOKENS tokens; streams 0..filled - 1 hold it. */
  #kv: Uint8Array | null = null;
  #filled = 0;

  constructor(context: LlamaContext, options: { slots: number; clock: Clock }) {
    this.#context = context;
    this.slots = options.slots;
    this.#clock = options.clock;
  }

  nowMs(): number {
    return this.#clock.nowMs();
  }

  /** Bytes that one more token adds to exported KV. */
  kvBytesPerToken(): number {
    const few = 2;
    const many = 18;
    this.#fill(0, few);
    const fewBytes = this.#context.stateBytes(0);
    this.#fill(few, many);
    const bytes = this.#context.stateBytes(0) - fewBytes;
    this.#context.clear(0);
    return Math.ceil(bytes / (many - few));
  }

  stepMs(batch: number, rowsPerSequence: number): number {
    this.#spread(batch);
    for (let stream = 0; stream < batch; stream += 1) {
      for (let i = 0; i < rowsPerSequence; i += 1) {
        this.#context.add(i % 2, PROBE_TOKENS + i, stream, true);
      }
    }
    const startMs = this.nowMs();
    this.#context.decode();
    const ms = this.nowMs() - startMs;
    for (let stream = 0; stream < batch; stream += 1) this.#context.truncate(stream, PROBE_TOKENS);
    return ms;
  }

  /** Empties the streams it has used. */
  close(): void {
    for (let stream = 0; stream < this.#filled; stream += 1) this.#context.clear(stream);
    this.#filled = 0;
    this.#kv = null;
  }

  /** Gives streams 0..batch - 1 the same KV: computed once, then copied. */
  #spread(batch: number): void {
    const copy = this.#probeKv();
    for (; this.#filled < batch; this.#filled += 1) {
      const taken = this.#context.importStream(this.#filled, copy);
      assert(taken, "a context takes a copy of its own stream");
    }
  }

  #probeKv(): Uint8Array {
    if (this.#kv !== null) return this.#kv;
    for (let from = 0; from < PROBE_TOKENS; from += PROBE_CHUNK) {
      this.#fill(from, from + PROBE_CHUNK);
    }
    this.#filled = 1;
    this.#kv = new Uint8Array(new ArrayBuffer(this.#context.stateBytes(0)));
    this.#context.exportStream(0, this.#kv);
    return this.#kv;
  }

  #fill(from: number, to: number): void {
    for (let position = from; position < to; position += 1) {
      this.#context.add(position % 2, position, 0, false);
    }
    this.#context.decode();
  }
}
