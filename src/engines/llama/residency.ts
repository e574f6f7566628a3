// Tracks where the KV of each sequence is: in a stream of the context, or swapped out to plain memory if there
// are more parked sequences than streams. It moves and frees KV; the engine decides which KV may stay.

import { assert } from "../../core/base/assert.ts";
import type { WeightEpoch } from "../../core/base/ids.ts";
import type { KvBlob } from "../../core/rollout/worker.ts";
import type { LlamaContext } from "./context.ts";
import { KV_HEADER_BYTES, openKvBlob, sealKvBlob } from "./kv-blob.ts";
import type { Sequence } from "./sequence.ts";

export class Residency {
  readonly context: LlamaContext;
  readonly #isFree: boolean[];
  /** Sequences that hold a stream and do not run, the longest idle first. */
  readonly #idle = new Set<Sequence>();

  constructor(context: LlamaContext) {
    this.context = context;
    this.#isFree = new Array(context.streams).fill(true);
  }

  /** The sequence stops running and keeps its KV: its stream may be given to another, and the KV swapped out. */
  setIdle(sequence: Sequence): void {
    if (sequence.stream >= 0) this.#idle.add(sequence);
  }

  /** Gives a sequence that is about to run a stream with its KV: the resident KV, or that of its blob. */
  activate(sequence: Sequence, epoch: WeightEpoch): "kept" | "loaded" | "refused" | "empty" {
    const { kv } = sequence;
    sequence.kv = null;
    this.#idle.delete(sequence);
    if (sequence.stream >= 0) return "kept";
    sequence.stream = this.#takeStream();
    const { swapped } = sequence;
    if (swapped !== null) {
      this.#copyIn(sequence.stream, swapped);
      sequence.swapped = null;
      return "kept";
    }
    if (kv === null) return "empty";
    const count = kv.tokens;
    const fits = Number.isInteger(count) && count > 0 && count < sequence.length;
    const origin = { epoch, tokens: sequence.tokens, count };
    const payload = fits ? openKvBlob(kv, origin) : null;
    if (payload === null || !this.context.importStream(sequence.stream, payload)) return "refused";
    sequence.computed = count;
    return "loaded";
  }

  /** Removes the sequence's KV from `position` on. */
  truncate(sequence: Sequence, position: number): void {
    assert(sequence.stream >= 0, "only KV in a stream can be cut");
    this.context.truncate(sequence.stream, position);
    sequence.computed = position;
  }

  /** Frees the sequence's KV and its stream. */
  drop(sequence: Sequence): void {
    this.#idle.delete(sequence);
    const { stream } = sequence;
    if (stream >= 0) {
      this.context.clear(stream);
      this.#isFree[stream] = true;
    }
    sequence.stream = -1;
    sequence.forgetKv();
  }

  /** Takes over the KV of a sequence that ends here, for the same request's next chunk, if its tokens are the same. */
  inherit(from: Sequence, to: Sequence): void {
    if (!to.continues(from)) {
      this.drop(from);
      return;
    }
    this.#idle.delete(from);
    to.stream = from.stream;
    to.swapped = from.swapped;
    to.computed = from.computed;
    from.stream = -1;
    from.swapped = null;
    from.computed = 0;
  }

  /** Takes the sequence's KV out, as a blob. */
  export(sequence: Sequence, epoch: WeightEpoch): KvBlob {
    const bytes = sequence.swapped ?? this.#copyOut(sequence.stream);
    const origin = { epoch, tokens: sequence.tokens, count: sequence.computed };
    const blob = sealKvBlob(bytes, origin);
    this.drop(sequence);
    return blob;
  }

  /**
   * Moves the running sequences to neighbouring streams. llama.cpp computes only streams with consecutive
   * numbers in one graph: a single gap among 16 sequences makes every step a quarter slower, while a move is
   * one copy.
   */
  gather(running: readonly Sequence[]): void {
    const count = running.length;
    let lowest = Number.MAX_SAFE_INTEGER;
    let highest = -1;
    for (const { stream } of running) {
      lowest = Math.min(lowest, stream);
      highest = Math.max(highest, stream);
    }
    if (highest - lowest < count) return;
    const isTaken = new Array(count).fill(false);
    for (const { stream } of running) if (stream < count) isTaken[stream] = true;
    let gap = 0;
    for (const sequence of running) {
      if (sequence.stream < count) continue;
      while (isTaken[gap] === true) gap += 1;
      this.#exchange(sequence, gap);
      gap += 1;
    }
  }

  /** Moves the sequence to `stream`, out of which an idle one is swapped. */
  #exchange(sequence: Sequence, stream: number): void {
    const from = sequence.stream;
    const state = sequence.computed > 0 ? this.#copyOut(from) : null;
    for (const idle of this.#idle) if (idle.stream === stream) this.#swapOut(idle);
    this.context.clear(from);
    if (state !== null) this.#copyIn(stream, state);
    sequence.stream = stream;
    this.#isFree[stream] = false;
    this.#isFree[from] = true;
  }

  /** Takes the lowest free stream, or that of the sequence idle longest, which is swapped out. */
  #takeStream(): number {
    if (!this.#isFree.includes(true)) {
      const [oldest] = this.#idle;
      assert(oldest !== undefined, "there are more streams than slots");
      this.#swapOut(oldest);
    }
    const free = this.#isFree.indexOf(true);
    this.#isFree[free] = false;
    return free;
  }

  #swapOut(idle: Sequence): void {
    idle.swapped = this.#copyOut(idle.stream);
    this.#idle.delete(idle);
    this.context.clear(idle.stream);
    this.#isFree[idle.stream] = true;
    idle.stream = -1;
  }

  #copyOut(stream: number): ArrayBuffer {
    const bytes = this.context.stateBytes(stream);
    const buffer = new ArrayBuffer(KV_HEADER_BYTES + bytes);
    const written = this.context.exportStream(stream, new Uint8Array(buffer, KV_HEADER_BYTES));
    assert(written === bytes, "the library writes the bytes it announced");
    return buffer;
  }

  #copyIn(stream: number, buffer: ArrayBuffer): void {
    const payload = new Uint8Array(buffer, KV_HEADER_BYTES);
    const restored = this.context.importStream(stream, payload);
    assert(restored, "the context takes back what it gave out");
  }
}
