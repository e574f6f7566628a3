// Output tokens in columns that grow at the end: ids, logprobs, the likeliest alternatives. A column only writes after its
// end, and moves to a larger array when it is full, so that a view of it never changes.

/** The likeliest alternatives at each of some positions: rows of `count`, likeliest first. */
export interface TopLogprobs {
  readonly count: number;
  /** Rows of `count` token ids; -1 where an engine reported fewer. */
  readonly tokens: Int32Array;
  readonly logprobs: Float32Array;
}

const ROWS_MIN = 64;
/** A loop is faster than two views for the few tokens that a step brings. */
const FEW = 32;
const NO_TOKENS = new Int32Array(0);
const NO_LOGPROBS = new Float32Array(0);

/** Half more than is needed: this wastes less than doubling, and is still O(1) per token. */
function roomFor(length: number, max: number): number {
  return Math.min(max, Math.max(ROWS_MIN, length + (length >>> 1)));
}

function grown<T extends Int32Array | Float32Array>(from: T, to: T): T {
  to.set(from);
  return to;
}

/** A column of token ids with one writer and any number of readers, which may outlive the writer. */
export class TokenColumn {
  readonly #max: number;
  #ids = NO_TOKENS;
  #length = 0;

  /** `max`: the column's length never exceeds it. */
  constructor(max: number = Number.POSITIVE_INFINITY) {
    this.#max = max;
  }

  get length(): number {
    return this.#length;
  }

  /** Includes spare room. */
  get bytes(): number {
    return this.#ids.byteLength;
  }

  /** Bytes by which the column grows when it gets `length` tokens. */
  growthBytes(length: number): number {
    if (length <= this.#ids.length) return 0;
    return roomFor(length, this.#max) * Int32Array.BYTES_PER_ELEMENT - this.#ids.byteLength;
  }

  /** Tokens `[from, min(length, to))`, not copied. A returned view never changes. */
  view(from: number, to: number = this.#length): Int32Array {
    return this.#ids.subarray(from, Math.min(to, this.#length));
  }

  /** Copies the tokens from `from` on to `target` at `at`, without creating a view. */
  copy(from: number, target: Uint32Array, at: number): void {
    const ids = this.#ids;
    const shift = at - from;
    for (let i = from; i < this.#length; i += 1) target[i + shift] = ids[i] as number;
  }

  /** Whether the tokens `[from, to)` equal those of `other` from `at` on. Both columns must be long enough. */
  agrees(from: number, to: number, other: TokenColumn, at: number): boolean {
    const ids = this.#ids;
    const others = other.#ids;
    const shift = at - from;
    for (let i = from; i < to; i += 1) if (ids[i] !== others[i + shift]) return false;
    return true;
  }

  /** Begins at the front again: what is added next overwrites the views. */
  rewind(): void {
    this.#length = 0;
  }

  push(token: number): void {
    this.#reserve(this.#length + 1);
    this.#ids[this.#length] = token;
    this.#length += 1;
  }

  /** Appends `tokens[from..]`. */
  append(tokens: Int32Array, from: number): void {
    const at = this.#length;
    const count = tokens.length - from;
    this.#reserve(at + count);
    const ids = this.#ids;
    if (count > FEW) ids.set(tokens.subarray(from), at);
    else for (let i = 0; i < count; i += 1) ids[at + i] = tokens[from + i] as number;
    this.#length = at + count;
  }

  #reserve(length: number): void {
    if (length <= this.#ids.length) return;
    this.#ids = grown(this.#ids, new Int32Array(roomFor(length, this.#max)));
  }
}

/** Output tokens with logprobs and alternatives. The column of ids begins with the lead: see RequestSpec.leadTokens. */
export class OutputColumns {
  readonly #max: number;
  readonly #leadTokens: number;
  readonly #topCount: number;
  #column: TokenColumn;
  #logprobs = NO_LOGPROBS;
  #topTokens = NO_TOKENS;
  #topLogprobs = NO_LOGPROBS;

  /** `topCount`: number of alternatives at each position. */
  constructor(max: number, topCount: number, lead: Int32Array = NO_TOKENS) {
    this.#max = max;
    this.#topCount = topCount;
    this.#leadTokens = lead.length;
    this.#column = this.#newColumn(lead);
  }

  get length(): number {
    return this.#column.length - this.#leadTokens;
  }

  /** Lead and output, for drafters that follow them. `clear` replaces the column; this one then stays as it is. */
  get column(): TokenColumn {
    return this.#column;
  }

  /** Bytes of all arrays, spare room included. */
  get bytes(): number {
    const top = this.#topTokens.byteLength + this.#topLogprobs.byteLength;
    return this.#column.bytes + this.#logprobs.byteLength + top;
  }

  /** A view, which never changes. */
  tokens(from = 0): Int32Array {
    return this.#column.view(this.#leadTokens + from);
  }

  /** A copy of the tokens, for an engine that keeps them or runs in another thread. */
  copied(): Int32Array {
    return this.tokens().slice();
  }

  /** Copies the tokens from `from` on to `target` at `at`, without creating a view. */
  copyTokens(from: number, target: Uint32Array, at: number): void {
    this.#column.copy(this.#leadTokens + from, target, at);
  }

  /** A view, which never changes. */
  logprobs(from = 0): Float32Array {
    return this.#logprobs.subarray(from, this.length);
  }

  /** Copies the logprobs from `from` on to `target` at `at`, without creating a view. */
  copyLogprobs(from: number, target: Float32Array, at: number): void {
    const logprobs = this.#logprobs;
    const { length } = this;
    const shift = at - from;
    for (let i = from; i < length; i += 1) target[i + shift] = logprobs[i] as number;
  }

  /** Views, which never change; null: no alternatives were requested. */
  topLogprobs(from = 0): TopLogprobs | null {
    const count = this.#topCount;
    if (count === 0) return null;
    const first = from * count;
    const end = this.length * count;
    return {
      count,
      tokens: this.#topTokens.subarray(first, end),
      logprobs: this.#topLogprobs.subarray(first, end),
    };
  }

  /** Appends the given tokens from `from` on. `top` null or of another count: their alternatives are unknown. */
  appendFrom(
    tokens: Int32Array,
    logprobs: Float32Array,
    top: TopLogprobs | null,
    from: number,
  ): void {
    const at = this.length;
    const count = tokens.length - from;
    this.#reserve(at + count);
    const column = this.#logprobs;
    for (let i = 0; i < count; i += 1) column[at + i] = logprobs[from + i] as number;
    if (this.#topCount > 0) this.#appendTop(top, from, count);
    this.#column.append(tokens, from);
  }

  /** Appends one token. `row`: its alternatives, as token, logprob, token, logprob ... */
  push(token: number, logprob: number, row: readonly number[] | undefined): void {
    const at = this.length;
    this.#reserve(at + 1);
    this.#logprobs[at] = logprob;
    const count = this.#topCount;
    for (let k = 0; k < count; k += 1) {
      this.#topTokens[at * count + k] = row?.[2 * k] ?? -1;
      this.#topLogprobs[at * count + k] = row?.[2 * k + 1] ?? Number.NEGATIVE_INFINITY;
    }
    this.#column.push(token);
  }

  /** Removes the output of a column without lead, and keeps the arrays: what is added next overwrites the views. */
  rewind(): void {
    this.#column.rewind();
  }

  /** Removes the output, by starting new arrays: readers of the old ones keep the old content. */
  clear(): void {
    this.#column = this.#newColumn(this.#column.view(0, this.#leadTokens));
    this.#logprobs = NO_LOGPROBS;
    this.#topTokens = NO_TOKENS;
    this.#topLogprobs = NO_LOGPROBS;
  }

  #newColumn(lead: Int32Array): TokenColumn {
    const column = new TokenColumn(lead.length + this.#max);
    if (lead.length > 0) column.append(lead, 0);
    return column;
  }

  #appendTop(top: TopLogprobs | null, from: number, rows: number): void {
    const count = this.#topCount;
    const at = this.length * count;
    if (top === null || top.count !== count) {
      this.#topTokens.fill(-1, at, at + rows * count);
      this.#topLogprobs.fill(Number.NEGATIVE_INFINITY, at, at + rows * count);
      return;
    }
    this.#topTokens.set(top.tokens.subarray(from * count), at);
    this.#topLogprobs.set(top.logprobs.subarray(from * count), at);
  }

  #reserve(length: number): void {
    if (length <= this.#logprobs.length) return;
    const room = roomFor(length, this.#max);
    this.#logprobs = grown(this.#logprobs, new Float32Array(room));
    if (this.#topCount === 0) return;
    this.#topTokens = grown(this.#topTokens, new Int32Array(room * this.#topCount));
    this.#topLogprobs = grown(this.#topLogprobs, new Float32Array(room * this.#topCount));
  }
}
