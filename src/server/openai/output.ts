// One response as a client sees it: which of its tokens count, its text, and why it ended. Several readers can
// follow it, each with its own cursor; it keeps no queue for any of them.

import type { WeightEpoch, WeightsId } from "../../core/base/ids.ts";
import type { RolloutRequest } from "../../core/request/buffer.ts";
import type { FinishReason } from "../../core/request/request.ts";
import type { PromptReport, RolloutResponse } from "../../core/request/response.ts";
import type { Detokenizer } from "../../text/text.ts";
import type { StopRules } from "./sampling-fields.ts";

/** A response's span of output tokens drawn under one weight version: start <= i < end. */
export interface WeightSpan {
  readonly version: string;
  readonly start: number;
  readonly end: number;
  /** Precision and digest of the weights; absent: the engine does not report them. */
  readonly weights?: WeightsId;
}

export type OutputCursor = ReturnType<typeof newCursor>;

/** `offset`: characters of printed tokens so far, OpenAI's text_offset. */
export function newCursor() {
  return { tokens: 0, pieces: 0, offset: 0, isOver: false, restarts: 0 };
}

const PIECE_OVERHEAD = 32;

/** A response as an engine's parser reads it. */
export interface ParsedMessage {
  /** The text beside the tool calls; null: there is none. */
  readonly content: string | null;
  readonly reasoning: string | null;
  /** Tool calls as the engine wrote them: `{"id", "type", "function": {"name", "arguments"}}`. */
  readonly toolCalls: readonly unknown[];
}

export interface OutputOptions {
  readonly index: number;
  readonly request: RolloutRequest;
  /** The response to the same prompt that brings reports on it. */
  readonly reporting: RolloutRequest;
  readonly stops: StopRules;
  /** Opens a detokenizer; null: no text is needed. */
  readonly detokenizer: (() => Detokenizer) | null;
  /** Called when a stop string is complete: the owner then ends the response. */
  readonly stopped: () => void;
}

export class Output {
  readonly index: number;
  readonly request: RolloutRequest;
  readonly #options: OutputOptions;
  #text: StopText | null;
  #tokens = 0;
  #finish: FinishReason | null = null;
  #stopReason: number | string | null = null;
  #lastStop = -1;
  #restarts = 0;
  /** The result of `Work.parse`; null: not yet known. */
  message: ParsedMessage | null = null;

  constructor(options: OutputOptions) {
    this.#options = options;
    this.index = options.index;
    this.request = options.request;
    this.#text = this.#newText();
  }

  get isWatched(): boolean {
    return this.#options.stops.strings.length > 0;
  }

  /** Number of tokens that count: up to the one that completed a stop string. */
  get tokens(): number {
    return this.#tokens;
  }

  /** Why the output ended; null: more may come. */
  get finish(): FinishReason | null {
    return this.#finish;
  }

  /** vLLM's stop_reason: the stop string or token id; null for the model's EOS and all else. */
  get stopReason(): number | string | null {
    return this.#stopReason;
  }

  get restarts(): number {
    return this.#restarts;
  }

  get pieces(): readonly string[] {
    return this.#text?.pieces ?? [];
  }

  /** Memory of the text: two bytes a character, and a share for each piece. */
  get textBytes(): number {
    return this.pieces.reduce((sum, { length }) => sum + 2 * length + PIECE_OVERHEAD, 0);
  }

  get keepsStop(): boolean {
    return this.#options.stops.keepStop;
  }

  /** The tokens without the final stop token, which is not part of the text. */
  textTokens(): Int32Array {
    const tokens = this.response.tokens().subarray(0, this.#tokens);
    const isEos = this.#finish === "stop" && this.#stopReason === null;
    const isEnded = isEos || (this.#lastStop >= 0 && tokens.at(-1) === this.#lastStop);
    return isEnded && !this.keepsStop ? tokens.subarray(0, -1) : tokens;
  }

  get prompt(): Int32Array {
    return this.request.spec.prompt;
  }

  /** Prompt logprobs and the like; null: not requested. */
  get promptReport(): PromptReport | null {
    return this.#options.reporting.response.promptReport;
  }

  get response(): RolloutResponse {
    return this.request.response;
  }

  /** Processes the tokens that the response has received since the last call. */
  advance(): void {
    if (this.#finish !== null) return;
    const { response } = this;
    const fresh = response.tokens(this.#tokens);
    if (fresh.length > 0) this.#take(fresh);
    if (this.#text !== null && this.#text.stopped !== null) {
      this.#end("stop", this.#text.stopped);
      this.#options.stopped();
      return;
    }
    if (response.finish === null) return;
    this.#text?.end();
    // The end of the text can complete a stop string too, when its last character was not whole before.
    const stopped = this.#text?.stopped ?? null;
    if (stopped !== null) {
      this.#end("stop", stopped);
      return;
    }
    const isNamed = response.finish === "stop" && this.#lastStop >= 0;
    const isEos = this.#lastStop === this.#options.stops.eos;
    this.#end(response.finish, isNamed && !isEos ? this.#lastStop : null);
  }

  /** Begins anew, after the response's tokens were discarded. */
  restart(): void {
    this.#text = this.#newText();
    this.#tokens = 0;
    this.#lastStop = -1;
    this.#restarts += 1;
  }

  weightSpans(version: (epoch: WeightEpoch) => string): WeightSpan[] {
    const spans: { -readonly [K in keyof WeightSpan]: WeightSpan[K] }[] = [];
    for (const { epoch, offset, tokens, weights } of this.response.chunks) {
      const end = Math.min(offset + tokens, this.#tokens);
      if (end <= offset) continue;
      const last = spans.at(-1);
      const name = version(epoch);
      const isSame = last?.version === name && (last.weights ?? null) === weights;
      if (isSame) last.end = end;
      else
        spans.push({ version: name, start: offset, end, ...(weights === null ? {} : { weights }) });
    }
    return spans;
  }

  #newText(): StopText | null {
    const { detokenizer, stops } = this.#options;
    return detokenizer === null ? null : new StopText(detokenizer(), stops);
  }

  #take(fresh: Int32Array): void {
    const { stops } = this.#options;
    const last = fresh[fresh.length - 1] ?? -1;
    // A stop token ends the response, so it can only be the last one; vLLM keeps it out of the text.
    const isStop = stops.tokens.has(last);
    if (isStop) this.#lastStop = last;
    const texted = isStop ? fresh.subarray(0, -1) : fresh;
    const taken = this.#text === null ? texted.length : this.#text.push(texted);
    const isCut = this.#text !== null && this.#text.stopped !== null;
    if (isStop && stops.keepStop) this.#text?.pushStop(fresh.subarray(-1));
    this.#tokens += isCut ? taken : fresh.length;
  }

  #end(finish: FinishReason, reason: number | string | null): void {
    this.#finish = finish;
    this.#stopReason = reason;
  }
}

export interface StopTextOptions {
  readonly strings: readonly string[];
  readonly keepStop: boolean;
  /** Number of first tokens at which no stop text applies. */
  readonly tokensMin: number;
}

export class StopText {
  readonly #detokenizer: Detokenizer;
  readonly #options: StopTextOptions;
  /** Characters before new ones that a stop string may begin with. */
  readonly #overlap: number;
  readonly pieces: string[] = [];
  /** The end of the text, as far back as a stop string to come may begin. */
  #window = "";
  /** Characters of the window that are in `pieces`. */
  #released = 0;
  #tokens = 0;
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
    const unit = this.#window.charCodeAt(end - 1);
    const isSplit = this.#stopped === null && unit >= 0xd800 && unit <= 0xdbff;
    const until = isSplit && end < this.#window.length ? end - 1 : end;
    if (until <= this.#released) return;
    this.pieces.push(this.#window.slice(this.#released, until));
    this.#released = until;
  }
}
