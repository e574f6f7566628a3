// Tokenizes clients' texts without blocking the serving thread: short texts at once, the
// others one after the other in threads of their own. Long texts have a thread apart, so that they hold up only one another.

import { AppError } from "../core/base/errors.ts";
import { ENCODERS, type EncoderJob, type EncoderThread, type ResultOf } from "./encoder-job.ts";
import { Lane } from "./job-lane.ts";
import type { Chat, EncodedChat, EncodeOptions, Encoder, Text } from "./text.ts";

export interface EncoderLimits {
  readonly charactersMax: number;
  /** Time limit of one text, from the start of its work. */
  readonly msMax: number;
}

export interface ThreadedEncoderOptions {
  readonly text: Text;
  readonly openThread: () => EncoderThread;
  readonly limits: EncoderLimits;
}

/** Limits of jobs that are done inline: either kind of tokenizer takes about a millisecond for them. */
const INLINE_MAX = { encode: 512, chat: 512, decode: 1024, names: 1024 };
/** Size of a short text, which never waits for longer ones: about 0.2 s of work. Lists are encoded in pieces of this size. */
const SHORT_CHARACTERS = 65_536;
/** Limit of the characters that wait in one lane. */
const WAITING_CHARACTERS_MAX = 256 * 1024 * 1024;
const WORDS = { thread: "the tokenizer", unit: "characters", done: "encoded" };

export class ThreadedEncoder implements Encoder {
  readonly #options: ThreadedEncoderOptions;
  readonly #short: Lane<EncoderJob>;
  readonly #long: Lane<EncoderJob>;

  constructor(options: ThreadedEncoderOptions) {
    this.#options = options;
    const { openThread, limits } = options;
    const lane = { openThread, msMax: limits.msMax, sizeMax: WAITING_CHARACTERS_MAX, words: WORDS };
    this.#short = new Lane(lane);
    this.#long = new Lane(lane);
  }

  async encode(texts: readonly string[], options: EncodeOptions): Promise<Int32Array[]> {
    const { signal, ...rest } = options;
    for (const one of texts) this.#checkLength(one.length);
    const encoded: Int32Array[] = [];
    for (const piece of piecesOf(texts)) {
      const characters = piece.reduce((sum, text) => sum + text.length, 0);
      const job = { kind: "encode", texts: piece, ...rest } as const;
      encoded.push(...(await this.#run(job, characters, signal)));
    }
    return encoded;
  }

  async encodeChat(chat: Chat, options: EncodeOptions): Promise<EncodedChat> {
    const { signal, ...rest } = options;
    const { charactersMax } = this.#options.limits;
    this.#checkLength(chat.length);
    const job = { kind: "chat", chat, charactersMax, ...rest } as const;
    return await this.#run(job, chat.length, signal);
  }

  async decode(tokens: Int32Array, signal: AbortSignal): Promise<string> {
    // Every token that occurs in a text is at least one byte.
    this.#checkLength(tokens.length);
    return await this.#run({ kind: "decode", tokens }, tokens.length, signal);
  }

  async namesJson(tokens: Int32Array, signal: AbortSignal): Promise<string> {
    return await this.#run({ kind: "names", tokens }, tokens.length, signal);
  }

  get waits() {
    return [this.#short, this.#long].flatMap(({ wait }) => wait ?? []);
  }

  close(): void {
    this.#short.close();
    this.#long.close();
  }

  async #run<J extends EncoderJob>(job: J, size: number, signal: AbortSignal) {
    if (size <= INLINE_MAX[job.kind]) {
      return ENCODERS[job.kind](this.#options.text, job as never) as ResultOf<J>;
    }
    const lane = size <= SHORT_CHARACTERS ? this.#short : this.#long;
    return (await lane.run(job, size, signal)) as ResultOf<J>;
  }

  #checkLength(characters: number): void {
    const { charactersMax } = this.#options.limits;
    if (characters <= charactersMax) return;
    const message = `a text has ${characters} characters, beyond the server's ${charactersMax}`;
    throw new AppError("context_length_exceeded", message);
  }
}

/** The texts in pieces that are each encoded in one turn. */
function piecesOf(texts: readonly string[]): string[][] {
  const pieces: string[][] = [];
  let characters = 0;
  for (const text of texts) {
    const last = pieces.at(-1);
    characters += text.length;
    if (last === undefined || characters > SHORT_CHARACTERS) {
      pieces.push([text]);
      characters = text.length;
    } else last.push(text);
  }
  return pieces;
}
