// The token log of a response that this process has itself, read without a copy. What an engine has sent ahead of it is
// kept until the response has it, and dropped if the response turns out to be another one there: the engine's attempt
// was given up, and the next one drew other tokens.
//
//   column  [0 .................. column.length)
//   ahead                 [from ............. from + ahead.length)     held behind a hole: [offset, end)

import type { TokenColumn } from "../../request/columns.ts";
import { type Log, type LogAppend, REPEAT, TokenLog } from "./token-log.ts";

/**
 * Tokens sent ahead that the response has reached are dropped in batches: when all are reached, or half and at least
 * this many. The cost is O(1) per token.
 */
const MOVED_TOKENS_MIN = 64;

export class FollowedLog implements Log {
  readonly #column: TokenColumn;
  /** Position 0 of the log is `#from` of the response: 0 <= #from <= column.length, as of the last `catchUp`. */
  #ahead = new TokenLog();
  #from = 0;
  /** Tokens of both up to here are the same. */
  #compared = 0;
  #length = 0;
  #bytes = 0;

  constructor(column: TokenColumn) {
    this.#column = column;
  }

  get length(): number {
    return this.#length;
  }

  /**
   * Memory at the last call that may have changed it. The response's column counts: the log keeps it after the response
   * is dropped.
   */
  get bytes(): number {
    return this.#bytes;
  }

  /** Takes in what the response has got; tokens by which the log is longer. */
  catchUp(): number {
    const before = this.#length;
    const have = this.#column.length;
    const covered = have - this.#from;
    if (!this.#agrees(have)) {
      this.#ahead = new TokenLog();
      this.#from = have;
    } else if (this.#ahead.bytes === 0) {
      this.#from = have;
    } else if (
      covered > 0 &&
      covered >= Math.min(this.#ahead.length, MOVED_TOKENS_MIN + this.#ahead.length / 2)
    ) {
      this.#ahead = this.#ahead.after(covered);
      this.#from = have;
    }
    this.#measure();
    return Math.max(this.#length - before, 0);
  }

  growthBytes(offset: number, count: number): number {
    const skipped = Math.max(this.#from - offset, 0);
    if (skipped >= count) return 0;
    return this.#ahead.growthBytes(offset + skipped - this.#from, count - skipped);
  }

  view(from: number, to: number = this.#length): Int32Array {
    if (to <= this.#column.length) return this.#column.view(from, to);
    if (from >= this.#from) return this.#ahead.view(from - this.#from, to - this.#from);
    const tokens = new Int32Array(Math.min(to, this.#length) - from);
    tokens.set(this.#column.view(from, this.#from));
    tokens.set(this.#ahead.view(0, to - this.#from), this.#from - from);
    return tokens;
  }

  append(offset: number, tokens: Int32Array, windowTokens: number): LogAppend {
    const before = this.#length;
    if (offset + tokens.length <= before) return REPEAT;
    const skipped = Math.max(this.#from - offset, 0);
    const rest = skipped === 0 ? tokens : tokens.subarray(skipped);
    const result = this.#ahead.append(offset + skipped - this.#from, rest, windowTokens);
    this.#measure();
    return result.kind === "ok" ? { kind: "ok", added: this.#length - before } : result;
  }

  #measure(): void {
    this.#length = Math.max(this.#column.length, this.#from + this.#ahead.length);
    this.#bytes = this.#column.bytes + this.#ahead.bytes;
  }

  /** Whether the tokens sent ahead equal the response's, up to its token number `have`. */
  #agrees(have: number): boolean {
    const end = Math.min(have, this.#from + this.#ahead.length);
    const at = Math.max(this.#compared, this.#from);
    this.#compared = have;
    return at >= end || this.#column.agrees(at, end, this.#ahead.tokens, at - this.#from);
  }
}
