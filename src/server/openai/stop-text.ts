// The text of one response as it grows, cut at the first stop string. It takes tokens one by one, so that the
// cut does not depend on how tokens arrived together, and gives out text only when no stop string can take it
// back any more. The rules are those of vLLM's incremental detokenizer (vllm/v1/engine/detokenizer.py).

import type { Detokenizer } from "../../text/text.ts";

export interface StopTextOptions {
  readonly strings: readonly string[];
  /** Whether the stop string itself is kept in the text. */
  readonly keepStop: boolean;
  /** Number of first tokens at which no stop text applies. */
  readonly tokensMin: number;
}

export class StopText {
  readonly #detokenizer: Detokenizer;
  readonly #options: StopTextOptions;
  /** Characters before new ones that a stop string may begin with. */
  readonly #overlap: number;
  /** Pieces of text that are certain. */
  readonly pieces: string[] = [];
  /** The end of the text, as far back as a stop string to come may begin. */
  #window = "";
  /** Characters of the window that are in `pieces`. */
  #released = 0;
  #tokens = 0;
  /** The stop string that ended the text. */
  #stopped: string | null = null;

  constructor(detokenizer: Detokenizer, options: StopTextOptions) {
    this.#detokenizer = detokenizer;
    this.#options = options;
    this.#overlap = options.strings.reduce((max, { length }) => Math.max(max, length - 1), 0);
  }

  get stopped(): string | null {
    return this.#stopped;
  }

  /** Takes tokens until a stop string is complete; returns how many it took. */
  push(tokens: Int32Array): number {
    if (this.#stopped !== null) return 0;
    if (this.#options.strings.length === 0) {
      const piece = this.#detokenizer.push(tokens);
      if (piece !== "") this.pieces.push(piece);
      return tokens.length;
    }
    for (let i = 0; i < tokens.length; i += 1) {
      this.#tokens += 1;
      this.#add(this.#detokenizer.push(tokens.subarray(i, i + 1)));
      if (this.#stopped !== null) return i + 1;
    }
    return tokens.length;
  }

  /** The stop token that has ended the response: it is text, but completes no stop string any more. */
  pushStop(token: Int32Array): void {
    if (this.#stopped === null) this.#window += this.#detokenizer.push(token);
  }

  /** Releases the text that was held back, because no token follows. */
  end(): void {
    if (this.#stopped !== null) return;
    this.#add(this.#detokenizer.flush());
    if (this.#stopped === null) this.#release(this.#window.length);
  }

  #add(piece: string): void {
    if (piece === "") return;
    this.#window += piece;
    if (this.#tokens > this.#options.tokensMin && this.#cut(piece.length)) return;
    const held = this.#options.keepStop ? 0 : this.#overlap;
    this.#release(this.#window.length - held);
    const forgotten = Math.min(this.#released, this.#window.length - this.#overlap);
    if (forgotten <= 0) return;
    this.#window = this.#window.slice(forgotten);
    this.#released -= forgotten;
  }

  /** The first string in the client's order wins, as in vLLM, even if another begins earlier. */
  #cut(fresh: number): boolean {
    for (const stop of this.#options.strings) {
      const from = Math.max(0, this.#window.length - fresh - stop.length + 1);
      const at = this.#window.indexOf(stop, from);
      if (at < 0) continue;
      this.#stopped = stop;
      this.#release(this.#options.keepStop ? at + stop.length : at);
      return true;
    }
    return false;
  }

  #release(end: number): void {
    // Half a surrogate pair is no text.
    const isSplit = this.#stopped === null && isHighSurrogate(this.#window.charCodeAt(end - 1));
    const until = isSplit && end < this.#window.length ? end - 1 : end;
    if (until <= this.#released) return;
    this.pieces.push(this.#window.slice(this.#released, until));
    this.#released = until;
  }
}

function isHighSurrogate(unit: number): boolean {
  return unit >= 0xd800 && unit <= 0xdbff;
}
