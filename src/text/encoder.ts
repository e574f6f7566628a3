// Tokenizes clients' texts without blocking the serving thread: short texts at once, the others one after the other in threads
// of their own. Long texts have a thread apart, so that they hold up only one another. A thread does the same jobs.

import { AppError } from "../core/base/errors.ts";
import { type JobThread, Lane, serveJobs } from "./job-lane.ts";
import type { Chat, EncodedChat, EncodeOptions, Encoder, Text } from "./text.ts";

/** What each kind of job takes and gives. */
interface Kinds {
  encode: [{ texts: readonly string[] } & Encoding, Int32Array[]];
  /** `charactersMax`: limit of the text that the template makes. */
  chat: [{ chat: Chat; charactersMax: number } & Encoding, EncodedChat];
  decode: [{ tokens: Int32Array }, string];
  /** JSON list of the tokens' texts. */
  names: [{ tokens: Int32Array }, string];
}

type Kind = keyof Kinds;
type Encoding = Omit<EncodeOptions, "signal">;
export type EncoderJob = { [K in Kind]: { readonly kind: K } & Kinds[K][0] }[Kind];
export type EncoderThread = JobThread<EncoderJob>;

const ENCODERS: { readonly [K in Kind]: (text: Text, job: Kinds[K][0]) => Kinds[K][1] } = {
  encode: (text, { texts, addSpecial, tokensMax }) =>
    texts.map((one) => {
      checkRoom(text, one, tokensMax);
      return text.encode(one, { addSpecial });
    }),
  chat: (text, { chat, addSpecial, tokensMax, charactersMax }) => {
    const written = text.renderChat(chat);
    if (written.length > charactersMax) {
      const message = `the chat template makes a text of ${written.length} characters, beyond the server's ${charactersMax}`;
      throw new AppError("context_length_exceeded", message);
    }
    checkRoom(text, written, tokensMax);
    return { text: written, tokens: text.encode(written, { addSpecial }) };
  },
  decode: (text, { tokens }) => text.decode(tokens, { skipSpecial: false }),
  names: (text, { tokens }) => {
    const decoder = new TextDecoder();
    return JSON.stringify(Array.from(tokens, (token) => decoder.decode(text.bytes(token))));
  },
};

/** Serves a tokenizer's thread: `open` makes the Text from the opening message. */
export function serveEncoder<Opening>(open: (opening: Opening) => Text): void {
  serveJobs((opening: Opening) => {
    const text = open(opening);
    return (job: EncoderJob) => ENCODERS[job.kind](text, job as never);
  });
}

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

class JobEncoder implements Encoder {
  readonly #text: Text;
  readonly #charactersMax: number;

  constructor(text: Text, charactersMax: number) {
    this.#text = text;
    this.#charactersMax = charactersMax;
  }

  async encode(texts: readonly string[], options: EncodeOptions): Promise<Int32Array[]> {
    const { signal, ...encoding } = options;
    for (const one of texts) this.#checkLength(one.length);
    const encoded: Int32Array[] = [];
    for (const piece of piecesOf(texts)) {
      const size = piece.reduce((sum, text) => sum + text.length, 0);
      encoded.push(...(await this.run("encode", { texts: piece, ...encoding }, { size, signal })));
    }
    return encoded;
  }

  async encodeChat(chat: Chat, { signal, ...encoding }: EncodeOptions): Promise<EncodedChat> {
    this.#checkLength(chat.length);
    const job = { chat, charactersMax: this.#charactersMax, ...encoding };
    return await this.run("chat", job, { size: chat.length, signal });
  }

  async decode(tokens: Int32Array, signal: AbortSignal): Promise<string> {
    // Every token that occurs in a text is at least one byte.
    this.#checkLength(tokens.length);
    return await this.run("decode", { tokens }, { size: tokens.length, signal });
  }

  async namesJson(tokens: Int32Array, signal: AbortSignal): Promise<string> {
    return await this.run("names", { tokens }, { size: tokens.length, signal });
  }

  protected async run<K extends Kind>(
    kind: K,
    job: Kinds[K][0],
    _: { size: number; signal: AbortSignal },
  ): Promise<Kinds[K][1]> {
    return ENCODERS[kind](this.#text, job);
  }

  #checkLength(characters: number): void {
    if (characters <= this.#charactersMax) return;
    const message = `a text has ${characters} characters, beyond the server's ${this.#charactersMax}`;
    throw new AppError("context_length_exceeded", message);
  }
}

/** An encoder without a thread, for a process that does nothing else meanwhile, on texts of its own user: none is too long. */
export function inlineEncoder(text: Text): Encoder {
  return new JobEncoder(text, Number.POSITIVE_INFINITY);
}

export class ThreadedEncoder extends JobEncoder {
  readonly #short: Lane<EncoderJob>;
  readonly #long: Lane<EncoderJob>;

  constructor({ text, openThread, limits }: ThreadedEncoderOptions) {
    super(text, limits.charactersMax);
    const lane = { openThread, msMax: limits.msMax, sizeMax: WAITING_CHARACTERS_MAX, words: WORDS };
    this.#short = new Lane(lane);
    this.#long = new Lane(lane);
  }

  get waits() {
    return [this.#short, this.#long].flatMap(({ wait }) => wait ?? []);
  }

  close(): void {
    this.#short.close();
    this.#long.close();
  }

  protected override async run<K extends Kind>(
    kind: K,
    job: Kinds[K][0],
    about: { size: number; signal: AbortSignal },
  ): Promise<Kinds[K][1]> {
    const { size, signal } = about;
    if (size <= INLINE_MAX[kind]) return await super.run(kind, job, about);
    const lane = size <= SHORT_CHARACTERS ? this.#short : this.#long;
    return (await lane.run({ kind, ...job } as EncoderJob, size, signal)) as Kinds[K][1];
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

/**
 * Refuses a text that is too long: it has at least as many tokens as its length divided by that of the longest token. (A
 * tokenizer that first drops characters could make fewer; vLLM judges alike.)
 */
function checkRoom(text: Text, written: string, tokensMax: number | null): void {
  if (tokensMax === null || written.length <= tokensMax) return;
  const tokensMin = Math.ceil(written.length / longestToken(text));
  if (tokensMin <= tokensMax) return;
  const most = `This model's maximum context length is ${tokensMax} tokens`;
  const least = `${written.length} characters, which are at least ${tokensMin} input tokens`;
  const message = `${most}. However, your prompt contains ${least}. Please reduce the length of the input prompt.`;
  throw new AppError("context_length_exceeded", message);
}

const longest = new WeakMap<Text, number>();

/** Length of the longest token in bytes, an upper bound of its characters. */
function longestToken(text: Text): number {
  return longest.getOrInsertComputed(text, () => {
    let bytes = 1;
    for (let token = 0; token < text.vocabularySize; token += 1) {
      bytes = Math.max(bytes, text.bytes(token).length);
    }
    return bytes;
  });
}
