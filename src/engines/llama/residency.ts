// Tracks where the KV of each sequence is: in a stream of the context, or swapped out to plain memory when
// parked sequences are many and streams few. It moves and frees KV; what may stay is the engine's to decide.

import { assert } from "../../core/base/assert.ts";
import type { WeightEpoch } from "../../core/base/ids.ts";
import type { KvBlob } from "../../core/rollout/worker.ts";
import type { LlamaContext } from "./context.ts";
import { KV_HEADER_BYTES, openKvBlob, sealKvBlob } from "./kv-blob.ts";
import type { Sequence } from "./sequence.ts";

export class Residency {
  readonly #context: LlamaContext;
  readonly #isFree: boolean[];
  /** Sequences that hold a stream and are not running; the first was put aside first. */
  readonly #idle = new Set<Sequence>();

  constructor(context: LlamaContext, streams: number) {
    this.#context = context;
    this.#isFree = new Array(streams).fill(true);
  }

  /** The sequence keeps its KV but does not run: its stream may be taken by another. */
  setIdle(sequence: Sequence): void {
    if (sequence.stream >= 0) this.#idle.add(sequence);
  }

  /** Gives a sequence about to run its stream, with the KV it has: its own, or that of its blob. */
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
    if (payload === null || !this.#context.importStream(sequence.stream, payload)) return "refused";
    sequence.computed = count;
    return "loaded";
  }

  /** Forgets the sequence's KV from `position` on. */
  truncate(sequence: Sequence, position: number): void {
    assert(sequence.stream >= 0, "only KV in a stream can be cut");
    this.#context.truncate(sequence.stream, position);
    sequence.computed = position;
  }

  /** Frees whatever the sequence holds. */
  drop(sequence: Sequence): void {
    this.#idle.delete(sequence);
    if (sequence.stream >= 0) this.#release(sequence.stream);
    sequence.stream = -1;
    sequence.forgetKv();
  }

  /** Takes over the KV of a sequence that ends here, for the same request's next chunk. */
  inherit(from: Sequence, to: Sequence): void {
    const shared = to.sharedWith(from);
    if (shared === 0) {
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
    if (shared === to.computed) return;
    // The rest belongs to tokens that another worker drew differently: possible only if it was lost there.
    if (to.stream < 0) this.drop(to);
    else this.truncate(to, shared);
  }

  /** The sequence's KV as a blob; it is no longer held here. */
  export(sequence: Sequence, epoch: WeightEpoch): KvBlob {
    const bytes = sequence.swapped ?? this.#copyOut(sequence.stream);
    const origin = { epoch, tokens: sequence.tokens, count: sequence.computed };
    const blob = sealKvBlob(bytes, origin);
    this.drop(sequence);
    return blob;
  }

  /**
   * Brings the running sequences into neighbouring streams. llama.cpp computes only streams with
   * consecutive numbers in one graph: a single gap among 16 sequences makes every step a quarter slower, while a
   * move is one copy.
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
    const taken = new Array(count).fill(false);
    for (const { stream } of running) if (stream < count) taken[stream] = true;
    let gap = 0;
    for (const sequence of running) {
      if (sequence.stream < count) continue;
      while (taken[gap] === true) gap += 1;
      this.#exchange(sequence, gap);
      gap += 1;
    }
  }

  /** Moves the sequence to `stream`; who idles there moves to the sequence's. */
  #exchange(sequence: Sequence, stream: number): void {
    const from = sequence.stream;
    const mine = sequence.computed > 0 ? this.#copyOut(from) : null;
    let other: Sequence | null = null;
    for (const idle of this.#idle) if (idle.stream === stream) other = idle;
    const theirs = other === null ? null : this.#copyOut(stream);
    this.#context.clear(from);
    this.#context.clear(stream);
    if (mine !== null) this.#copyIn(stream, mine);
    sequence.stream = stream;
    if (other === null || theirs === null) {
      this.#isFree[stream] = false;
      this.#isFree[from] = true;
      return;
    }
    this.#copyIn(from, theirs);
    other.stream = from;
  }

  /** The lowest free stream, or that of the sequence put aside first. */
  #takeStream(): number {
    const free = this.#isFree.indexOf(true);
    if (free >= 0) {
      this.#isFree[free] = false;
      return free;
    }
    const [oldest] = this.#idle;
    assert(oldest !== undefined, "there are more streams than slots");
    oldest.swapped = this.#copyOut(oldest.stream);
    this.#idle.delete(oldest);
    const { stream } = oldest;
    oldest.stream = -1;
    this.#context.clear(stream);
    return stream;
  }

  #copyOut(stream: number): ArrayBuffer {
    const bytes = this.#context.stateBytes(stream);
    const buffer = new ArrayBuffer(KV_HEADER_BYTES + bytes);
    const written = this.#context.exportStream(stream, new Uint8Array(buffer, KV_HEADER_BYTES));
    assert(written === bytes, "the library writes the bytes it announced");
    return buffer;
  }

  #release(stream: number): void {
    this.#context.clear(stream);
    this.#isFree[stream] = true;
  }

  #copyIn(stream: number, buffer: ArrayBuffer): void {
    const payload = new Uint8Array(buffer, KV_HEADER_BYTES);
    const restored = this.#context.importStream(stream, payload);
    assert(restored, "the context takes back what it gave out");
  }
}
