// The token log of one response in a draft group. What this process has of the response itself is read from the response's
// column, without a copy; the log keeps what clients send ahead of it, until the response has it, or turns out to be another
// one there: the client's attempt was given up, and the next one drew other tokens. A response of which this process has
// nothing is all ahead. Tokens that come too early are held in a bounded window until the hole before them closes.
//
//   column  [0 .................. column.length)
//   ahead                 [from ............. end)     held behind a hole: [offset, ...), ending by end + window

import { TokenColumn } from "../../request/columns.ts";
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

/** Bytes of a held piece beside its tokens, about: pieces of one token must not look free. */
const SEGMENT_BYTES = 128;
/**
 * Tokens sent ahead that the response has reached are dropped in batches: when all are reached, or half and at least
 * this many. The cost is O(1) per token.
 */
const MOVED_TOKENS_MIN = 64;
const REPEAT: LogAppend = { kind: "ok", added: 0 };
const HELD: LogAppend = { kind: "held" };
const GAP: LogAppend = { kind: "gap" };

export class TokenLog {
  /** true: this process has the response, and what clients lack of it need not be sent. */
  readonly isFollowed: boolean;
  readonly #column: TokenColumn;
  /** Position 0 of it is `#from` of the log: 0 <= #from <= column.length, as of the last `catchUp`. */
  #ahead = new TokenColumn();
  #from = 0;
  /** Segments behind a hole, in ascending order of offset. */
  #held: Segment[] = [];
  #heldTokens = 0;
  /** Tokens of column and ahead up to here are the same. */
  #compared = 0;
  #length = 0;
  #bytes = 0;

  /** `column`: the response's; null: this process does not have it. */
  constructor(column: TokenColumn | null = null) {
    this.isFollowed = column !== null;
    this.#column = column ?? new TokenColumn();
  }

  /** Tokens from 0 on without a hole, as of the last call that may have changed it. */
  get length(): number {
    return this.#length;
  }

  /** Memory, as of the same call. The response's column counts: the log keeps it after the response is dropped. */
  get bytes(): number {
    return this.#bytes;
  }

  get #end(): number {
    return this.#from + this.#ahead.length;
  }

  /** Takes in what the response has got; tokens by which the log is longer. */
  catchUp(): number {
    const before = this.#length;
    const have = this.#column.length;
    const covered = have - this.#from;
    const { length } = this.#ahead;
    if (!this.#agrees(have)) {
      this.#held = [];
      this.#heldTokens = 0;
      this.#ahead = new TokenColumn();
      this.#from = have;
    } else if (covered > 0 && covered >= Math.min(length, MOVED_TOKENS_MIN + length / 2)) {
      this.#begin(have);
    }
    this.#measure();
    return Math.max(this.#length - before, 0);
  }

  /** Bytes more that the log takes, at most, after an append of `count` tokens at `offset`. */
  growthBytes(offset: number, count: number): number {
    const from = Math.max(offset, this.#from);
    const rest = offset + count - from;
    if (rest <= 0) return 0;
    if (from > this.#end) return rest * TOKEN_BYTES + SEGMENT_BYTES;
    return this.#ahead.growthBytes(from + rest - this.#from + this.#heldTokens);
  }

  /** Tokens `[from, min(length, to))`, 0 <= from <= to. A returned view never changes. */
  view(from: number, to: number = this.#length): Int32Array {
    if (to <= this.#column.length) return this.#column.view(from, to);
    if (from >= this.#from) return this.#ahead.view(from - this.#from, to - this.#from);
    const tokens = new Int32Array(Math.min(to, this.#length) - from);
    tokens.set(this.#column.view(from, this.#from));
    tokens.set(this.#ahead.view(0, to - this.#from), this.#from - from);
    return tokens;
  }

  /** Keeps a copy. `windowTokens` bounds both how far ahead tokens may reach and how many are held. */
  append(offset: number, tokens: Int32Array, windowTokens: number): LogAppend {
    const before = this.#length;
    if (tokens.length === 0 || offset + tokens.length <= before) return REPEAT;
    if (offset > this.#end) {
      const result = this.#hold({ offset, tokens }, windowTokens);
      this.#measure();
      return result;
    }
    this.#push({ offset, tokens });
    this.#fill();
    this.#measure();
    return { kind: "ok", added: this.#length - before };
  }

  #measure(): void {
    this.#length = Math.max(this.#column.length, this.#end);
    const held = this.#heldTokens * TOKEN_BYTES + this.#held.length * SEGMENT_BYTES;
    this.#bytes = this.#column.bytes + this.#ahead.bytes + held;
  }

  /** Drops what is ahead before `from`. */
  #begin(from: number): void {
    const before = this.#ahead;
    const dropped = from - this.#from;
    this.#from = from;
    // Usually nothing is ahead, whenever the response has got tokens.
    if (before.length > 0) {
      this.#ahead = new TokenColumn();
      if (dropped < before.length) this.#ahead.append(before.view(dropped), 0);
    }
    this.#fill();
  }

  #push({ offset, tokens }: Segment): void {
    const end = this.#end;
    if (offset + tokens.length > end) this.#ahead.append(tokens, end - offset);
  }

  /** Takes in held pieces whose hole has closed. */
  #fill(): void {
    for (let next = this.#held[0]; next !== undefined; next = this.#held[0]) {
      if (next.offset > this.#end) return;
      this.#held.shift();
      this.#heldTokens -= next.tokens.length;
      this.#push(next);
    }
  }

  #hold({ offset, tokens }: Segment, windowTokens: number): LogAppend {
    const end = offset + tokens.length;
    if (end > this.#end + windowTokens) return GAP;
    for (const other of this.#held) {
      if (other.offset <= offset && end <= other.offset + other.tokens.length) return HELD;
    }
    if (this.#heldTokens + tokens.length > windowTokens) return GAP;
    const at = this.#held.findIndex((other) => other.offset > offset);
    const kept = { offset, tokens: tokens.slice() };
    this.#held.splice(at < 0 ? this.#held.length : at, 0, kept);
    this.#heldTokens += tokens.length;
    return HELD;
  }

  /** Whether the tokens sent ahead equal the response's, up to its token number `have`. */
  #agrees(have: number): boolean {
    const end = Math.min(have, this.#end);
    const at = Math.max(this.#compared, this.#from);
    this.#compared = have;
    return at >= end || this.#column.agrees(at, end, this.#ahead, at - this.#from);
  }
}
