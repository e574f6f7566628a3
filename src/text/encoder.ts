// Tokenizes clients' texts without blocking the serving thread: short texts at once, the
// others one after the other in threads of their own. An encoding that takes too long costs its request an error, and the
// thread its life. Long texts have a thread apart, so that they hold up only one another.

import { AppError, InvalidFieldError } from "../core/base/errors.ts";
import { ENCODERS, type EncoderAnswer, type EncoderJob, type ResultOf } from "./encoder-job.ts";
import type {
  ChatMessage,
  ChatOptions,
  EncodedChat,
  EncodeOptions,
  Encoder,
  Text,
} from "./text.ts";

/** A thread that runs `serveEncoder` (encoder-thread.ts). */
export interface EncoderThread {
  post(job: EncoderJob): void;
  /** Called once for each job that was posted, and never again after `stop`. */
  listen(answered: (answer: EncoderAnswer) => void, died: (reason: string) => void): void;
  /** Ends it, whatever it does. */
  stop(): void;
}

export interface EncoderLimits {
  /** Of one text. */
  readonly charactersMax: number;
  /** Of one text, from its turn on. */
  readonly msMax: number;
}

export interface ThreadedEncoderOptions {
  readonly text: Text;
  readonly openThread: () => EncoderThread;
  readonly limits: EncoderLimits;
}

/** Encoded in about a millisecond by either kind of tokenizer. */
const INLINE_CHARACTERS = 512;
const INLINE_TOKENS = 1024;
/** Texts up to this never wait for longer ones. About 0.2 s of work; a list of texts is encoded in pieces of this size. */
const SHORT_CHARACTERS = 65_536;
/** Of jobs that wait in one lane: as many as a sidecar takes requests. */
const WAITING_MAX = 65_536;
const WAITING_CHARACTERS_MAX = 256 * 1024 * 1024;

export class ThreadedEncoder implements Encoder {
  readonly #options: ThreadedEncoderOptions;
  readonly #short: Lane;
  readonly #long: Lane;

  constructor(options: ThreadedEncoderOptions) {
    this.#options = options;
    this.#short = new Lane(options);
    this.#long = new Lane(options);
  }

  async encode(texts: readonly string[], options: EncodeOptions): Promise<Int32Array[]> {
    const { signal, ...rest } = options;
    for (const one of texts) this.#checkLength(one.length);
    const encoded: Int32Array[] = [];
    for (const piece of piecesOf(texts)) {
      const characters = charactersIn(piece);
      const job = { kind: "encode", texts: piece, ...rest } as const;
      encoded.push(...(await this.#run(job, { characters, inlineMax: INLINE_CHARACTERS, signal })));
    }
    return encoded;
  }

  async encodeChat(
    messages: readonly ChatMessage[],
    chat: ChatOptions,
    options: EncodeOptions,
  ): Promise<EncodedChat> {
    const { signal, ...rest } = options;
    const request = JSON.stringify({ messages, chat });
    const { charactersMax } = this.#options.limits;
    this.#checkLength(request.length);
    const job = { kind: "chat", request, charactersMax, ...rest } as const;
    const size = { characters: request.length, inlineMax: INLINE_CHARACTERS };
    return await this.#run(job, { ...size, signal });
  }

  async decode(tokens: Int32Array, signal: AbortSignal): Promise<string> {
    // Every token that occurs in a text is at least one byte.
    this.#checkLength(tokens.length);
    const size = { characters: tokens.length, inlineMax: INLINE_TOKENS };
    return await this.#run({ kind: "decode", tokens }, { ...size, signal });
  }

  async namesJson(tokens: Int32Array, signal: AbortSignal): Promise<string> {
    const size = { characters: tokens.length, inlineMax: INLINE_TOKENS };
    return await this.#run({ kind: "names", tokens }, { ...size, signal });
  }

  close(): void {
    this.#short.close();
    this.#long.close();
  }

  async #run<J extends EncoderJob>(
    job: J,
    about: { characters: number; inlineMax: number; signal: AbortSignal },
  ): Promise<ResultOf<J>> {
    const { characters, inlineMax, signal } = about;
    if (characters <= inlineMax)
      return ENCODERS[job.kind](this.#options.text, job as never) as ResultOf<J>;
    const lane = characters <= SHORT_CHARACTERS ? this.#short : this.#long;
    return (await lane.run(job, characters, signal)) as ResultOf<J>;
  }

  #checkLength(characters: number): void {
    const { charactersMax } = this.#options.limits;
    if (characters <= charactersMax) return;
    const message = `a text has ${characters} characters, beyond the server's ${charactersMax}`;
    throw new AppError("context_length_exceeded", message);
  }
}

interface Waiting {
  readonly job: EncoderJob;
  readonly characters: number;
  readonly resolve: (value: unknown) => void;
  readonly reject: (error: unknown) => void;
}

/** One thread, opened when it is first needed and again when it was stopped, and who waits for it. */
class Lane {
  readonly #options: ThreadedEncoderOptions;
  /** In the order of arrival. */
  readonly #waiting = new Set<Waiting>();
  #characters = 0;
  #thread: EncoderThread | null = null;
  #current: Waiting | null = null;
  #timer: ReturnType<typeof setTimeout> | undefined;

  constructor(options: ThreadedEncoderOptions) {
    this.#options = options;
  }

  /** @throws AppError queue_full, deadline_exceeded, interrupted; and what the job throws. */
  run(job: EncoderJob, characters: number, signal: AbortSignal): Promise<unknown> {
    if (
      this.#waiting.size >= WAITING_MAX ||
      this.#characters + characters > WAITING_CHARACTERS_MAX
    ) {
      const message = `${this.#waiting.size} texts of ${this.#characters} characters wait to be encoded, the server's maximum`;
      throw new AppError("queue_full", message);
    }
    const { promise, resolve, reject } = Promise.withResolvers<unknown>();
    const waiting = { job, characters, resolve, reject };
    const leave = () => {
      if (this.#remove(waiting)) reject(new AppError("interrupted", "the client disconnected"));
    };
    if (signal.aborted) reject(new AppError("interrupted", "the client disconnected"));
    else {
      this.#waiting.add(waiting);
      this.#characters += characters;
      signal.addEventListener("abort", leave, { once: true });
      this.#next();
    }
    return promise.finally(() => signal.removeEventListener("abort", leave));
  }

  close(): void {
    this.#thread?.stop();
    this.#thread = null;
    clearTimeout(this.#timer);
    const closed = new AppError("draining", "the server stops");
    this.#current?.reject(closed);
    this.#current = null;
    for (const waiting of this.#waiting) waiting.reject(closed);
    this.#waiting.clear();
  }

  /** false: it does not wait any more. */
  #remove(waiting: Waiting): boolean {
    if (!this.#waiting.delete(waiting)) return false;
    this.#characters -= waiting.characters;
    return true;
  }

  #next(): void {
    const [next] = this.#waiting;
    if (this.#current !== null || next === undefined) return;
    this.#remove(next);
    this.#current = next;
    const { msMax } = this.#options.limits;
    this.#timer = setTimeout(() => {
      this.#abandon(
        new AppError(
          "deadline_exceeded",
          `${next.characters} characters were not encoded in ${msMax / 1000} s`,
        ),
      );
    }, msMax);
    this.#thread ??= this.#open();
    this.#thread.post(next.job);
  }

  #open(): EncoderThread {
    const thread = this.#options.openThread();
    thread.listen(
      (answer) => this.#answered(answer),
      (reason) => this.#abandon(new AppError("worker_failed", `the tokenizer's thread: ${reason}`)),
    );
    return thread;
  }

  #answered(answer: EncoderAnswer): void {
    const current = this.#current;
    this.#current = null;
    clearTimeout(this.#timer);
    if (answer.kind === "done") current?.resolve(answer.value);
    else current?.reject(errorOf(answer));
    this.#next();
  }

  #abandon(error: AppError): void {
    this.#thread?.stop();
    this.#thread = null;
    const current = this.#current;
    this.#current = null;
    clearTimeout(this.#timer);
    current?.reject(error);
    this.#next();
  }
}

/** Texts that are encoded at one turn. */
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

function charactersIn(texts: readonly string[]): number {
  return texts.reduce((sum, text) => sum + text.length, 0);
}

function errorOf(answer: Extract<EncoderAnswer, { kind: "failed" }>): Error {
  const { code, message, field } = answer;
  if (field !== null) return new InvalidFieldError(field);
  return code === null ? new Error(message) : new AppError(code, message);
}
