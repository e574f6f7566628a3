// The token log of one response: append by offset, repeats skipped, tokens that arrive too early held
// back in a bounded window until the hole before them closes. It never drops what it has taken.
//
//   tokens  [0 ....... length)          contiguous, the log proper
//   held             gap [offset, end) [offset, end)      end <= length + window

import { TOKEN_BYTES } from "./limits.ts";

export type LogAppend =
  /** `added` tokens more are in the log, those that had been held included. 0: a repeat. */
  | { readonly kind: "ok"; readonly added: number }
  | { readonly kind: "held" }
  /** The tokens begin, or end, beyond the window; nothing is kept of them. */
  | { readonly kind: "gap" };

interface Segment {
  readonly offset: number;
  readonly tokens: Int32Array;
}

const CAPACITY_MIN = 64;
/** What a held piece takes beside its tokens, about: pieces of one token must not look free. */
const SEGMENT_BYTES = 128;
const REPEAT: LogAppend = { kind: "ok", added: 0 };
const HELD: LogAppend = { kind: "held" };
const GAP: LogAppend = { kind: "gap" };

export class TokenLog {
  #tokens = new Int32Array(0);
  #length = 0;
  /** In ascending order of offset. */
  #held: Segment[] = [];
  #heldTokens = 0;

  get length(): number {
    return this.#length;
  }

  get bytes(): number {
    const tokens = this.#tokens.length + this.#heldTokens;
    return tokens * TOKEN_BYTES + this.#held.length * SEGMENT_BYTES;
  }

  /** Bytes more that the log takes, at most, after an append of `count` tokens at `offset`. */
  growthBytes(offset: number, count: number): number {
    if (offset > this.#length) return count * TOKEN_BYTES + SEGMENT_BYTES;
    const needed = offset + count + this.#heldTokens;
    if (needed <= this.#tokens.length) return 0;
    return (capacityFor(needed) - this.#tokens.length) * TOKEN_BYTES;
  }

  /**
   * Tokens `[from, min(length, to))`, not copied. The log only ever writes behind its end, so what is
   * handed out never changes.
   */
  view(from: number, to: number = this.#length): Int32Array {
    return this.#tokens.subarray(from, Math.min(to, this.#length));
  }

  /** Keeps a copy. `windowTokens` bounds both how far ahead tokens may reach and how many are held. */
  append(offset: number, tokens: Int32Array, windowTokens: number): LogAppend {
    if (tokens.length === 0) return REPEAT;
    if (offset > this.#length) return this.#hold({ offset, tokens }, windowTokens);
    const before = this.#length;
    this.#push(offset, tokens);
    while (true) {
      const next = this.#held[0];
      if (next === undefined || next.offset > this.#length) break;
      this.#held.shift();
      this.#heldTokens -= next.tokens.length;
      this.#push(next.offset, next.tokens);
    }
    return { kind: "ok", added: this.#length - before };
  }

  #push(offset: number, tokens: Int32Array): void {
    const end = offset + tokens.length;
    if (end <= this.#length) return;
    if (end > this.#tokens.length) {
      const grown = new Int32Array(capacityFor(end));
      grown.set(this.view(0));
      this.#tokens = grown;
    }
    this.#tokens.set(tokens.subarray(this.#length - offset), this.#length);
    this.#length = end;
  }

  #hold(segment: Segment, windowTokens: number): LogAppend {
    const end = segment.offset + segment.tokens.length;
    if (end > this.#length + windowTokens) return GAP;
    for (const other of this.#held) {
      const isCovered = other.offset <= segment.offset && end <= other.offset + other.tokens.length;
      if (isCovered) return HELD;
    }
    if (this.#heldTokens + segment.tokens.length > windowTokens) return GAP;
    const at = this.#held.findIndex((other) => other.offset > segment.offset);
    const kept = { offset: segment.offset, tokens: segment.tokens.slice() };
    this.#held.splice(at < 0 ? this.#held.length : at, 0, kept);
    this.#heldTokens += segment.tokens.length;
    return HELD;
  }
}

/** Half as much again: fewer spare bytes than doubling, still O(1) amortised. */
function capacityFor(tokens: number): number {
  return Math.max(CAPACITY_MIN, tokens + (tokens >>> 1));
}
