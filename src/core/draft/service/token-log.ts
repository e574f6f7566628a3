// The token log of one response: append by offset, repeats skipped, tokens that arrive too early held
// back in a bounded window until the hole before them closes. It never drops what it has taken.
//
//   tokens  [0 ....... length)          contiguous, the log proper
//   held             gap [offset, end) [offset, end)      end <= length + window

import { TokenColumn } from "../../request/columns.ts";
import { TOKEN_BYTES } from "./limits.ts";

export type LogAppend =
  /** `added` tokens more are in the log, those that had been held included. 0: a repeat. */
  | { readonly kind: "ok"; readonly added: number }
  | { readonly kind: "held" }
  /** The tokens begin, or end, beyond the window; nothing is kept of them. */
  | { readonly kind: "gap" };

export interface Log {
  /** Tokens from 0 on without a hole. */
  readonly length: number;
  readonly bytes: number;
  /** Bytes more that the log takes, at most, after an append of `count` tokens at `offset`. */
  growthBytes(offset: number, count: number): number;
  /** Tokens `[from, min(length, to))`, 0 <= from <= to. A returned view never changes. */
  view(from: number, to?: number): Int32Array;
  /** Keeps a copy. `windowTokens` bounds both how far ahead tokens may reach and how many are held. */
  append(offset: number, tokens: Int32Array, windowTokens: number): LogAppend;
}

interface Segment {
  readonly offset: number;
  readonly tokens: Int32Array;
}

/** Bytes of a held piece beside its tokens, about: pieces of one token must not look free. */
const SEGMENT_BYTES = 128;
export const REPEAT: LogAppend = { kind: "ok", added: 0 };
const HELD: LogAppend = { kind: "held" };
const GAP: LogAppend = { kind: "gap" };

export class TokenLog implements Log {
  readonly tokens = new TokenColumn();
  /** Segments beyond a gap, in ascending order of offset. */
  #held: Segment[] = [];
  #heldTokens = 0;

  get length(): number {
    return this.tokens.length;
  }

  get bytes(): number {
    const held = this.#heldTokens * TOKEN_BYTES + this.#held.length * SEGMENT_BYTES;
    return this.tokens.bytes + held;
  }

  growthBytes(offset: number, count: number): number {
    if (offset > this.length) return count * TOKEN_BYTES + SEGMENT_BYTES;
    return this.tokens.growthBytes(offset + count + this.#heldTokens);
  }

  /** The tokens without a copy. */
  view(from: number, to: number = this.length): Int32Array {
    return this.tokens.view(from, to);
  }

  append(offset: number, tokens: Int32Array, windowTokens: number): LogAppend {
    if (tokens.length === 0) return REPEAT;
    if (offset > this.length) return this.#hold({ offset, tokens }, windowTokens);
    const before = this.length;
    this.#push(offset, tokens);
    while (true) {
      const next = this.#held[0];
      if (next === undefined || next.offset > this.length) break;
      this.#held.shift();
      this.#heldTokens -= next.tokens.length;
      this.#push(next.offset, next.tokens);
    }
    return { kind: "ok", added: this.length - before };
  }

  /** A log of the tokens behind the first `count` positions, which need not be there. */
  after(count: number): TokenLog {
    const log = new TokenLog();
    const pieces = [{ offset: 0, tokens: this.view(0) }, ...this.#held];
    for (const { offset, tokens } of pieces) {
      const skipped = Math.max(count - offset, 0);
      const rest = tokens.subarray(skipped);
      log.append(offset + skipped - count, rest, Number.POSITIVE_INFINITY);
    }
    return log;
  }

  #push(offset: number, tokens: Int32Array): void {
    if (offset + tokens.length > this.length) this.tokens.append(tokens, this.length - offset);
  }

  #hold(segment: Segment, windowTokens: number): LogAppend {
    const end = segment.offset + segment.tokens.length;
    if (end > this.length + windowTokens) return GAP;
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
