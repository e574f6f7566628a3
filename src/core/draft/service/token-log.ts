// The token log of one response in a draft group. What this process has of the response itself is read from the response's
// column, without a copy; the log keeps what clients send ahead of it, until the response has it, or turns out to be another
// one there: the client's attempt was given up, and the next one drew other tokens. A response of which this process has
// nothing is all ahead. Tokens that come too early are held in a bounded window until the hole before them closes.
//
//   column  [0 .................. column.length)
//   ahead                 [from ............. end)     held behind a hole: [offset, ...), ending by end + window

import { TokenColumn } from "../../request/columns.ts";
import { TOKEN_BYTES } from "./limits.ts";

/** held: kept until the hole closes. gap: the tokens begin, or end, beyond the window; nothing is kept of them. */
export type LogAppend = "ok" | "held" | "gap";

interface Segment {
  readonly offset: number;
  readonly tokens: Int32Array;
}

/** Bytes of a held piece beside its tokens, about: pieces of one token must not look free. */
const SEGMENT_BYTES = 128;
/** Tokens sent ahead that the response has reached are dropped when all are, or half and at least so many: O(1) a token. */
const MOVED_TOKENS_MIN = 64;

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

  /** `column`: the response's; null: this process does not have it. */
  constructor(column: TokenColumn | null = null) {
    this.isFollowed = column !== null;
    this.#column = column ?? new TokenColumn();
  }

  /** Tokens from 0 on without a hole. Right after `catchUp` alone: the response grows, and may differ from what was sent ahead. */
  get length(): number {
    return Math.max(this.#column.length, this.#end);
  }

  /** Tokens that the response has. */
  get own(): number {
    return this.#column.length;
  }

  /** Memory. The response's column counts: the log keeps it after the response is dropped. */
  get bytes(): number {
    const held = this.#heldTokens * TOKEN_BYTES + this.#held.length * SEGMENT_BYTES;
    return this.#column.bytes + this.#ahead.bytes + held;
  }

  get #end(): number {
    return this.#from + this.#ahead.length;
  }

  /** Takes in what the response has got. */
  catchUp(): void {
    const have = this.#column.length;
    const reached = have - this.#from;
    const { length } = this.#ahead;
    const shared = Math.min(reached, length);
    if (!this.#column.agrees(this.#from, this.#from + shared, this.#ahead, 0)) {
      this.#held = [];
      this.#heldTokens = 0;
    } else if (reached < Math.min(length, MOVED_TOKENS_MIN + length / 2)) {
      return;
    } else if (shared < length) {
      const rest = this.#ahead.view(shared);
      this.#ahead = new TokenColumn();
      this.#ahead.append(rest, 0);
      this.#from = have;
      return;
    }
    if (length > 0) this.#ahead = new TokenColumn();
    this.#from = have;
    this.#fill();
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
  view(from: number, to: number = this.length): Int32Array {
    if (to <= this.#column.length) return this.#column.view(from, to);
    if (from >= this.#from) return this.#ahead.view(from - this.#from, to - this.#from);
    const tokens = new Int32Array(Math.min(to, this.length) - from);
    tokens.set(this.#column.view(from, this.#from));
    tokens.set(this.#ahead.view(0, to - this.#from), this.#from - from);
    return tokens;
  }

  /** Keeps a copy. `windowTokens` bounds both how far ahead tokens may reach and how many are held. */
  append(offset: number, tokens: Int32Array, windowTokens: number): LogAppend {
    if (tokens.length === 0 || offset + tokens.length <= this.length) return "ok";
    if (offset > this.#end) return this.#hold({ offset, tokens }, windowTokens);
    this.#push({ offset, tokens });
    this.#fill();
    return "ok";
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
    if (end > this.#end + windowTokens) return "gap";
    for (const other of this.#held) {
      if (other.offset <= offset && end <= other.offset + other.tokens.length) return "held";
    }
    if (this.#heldTokens + tokens.length > windowTokens) return "gap";
    const at = this.#held.findIndex((other) => other.offset > offset);
    const kept = { offset, tokens: tokens.slice() };
    this.#held.splice(at < 0 ? this.#held.length : at, 0, kept);
    this.#heldTokens += tokens.length;
    return "held";
  }
}
