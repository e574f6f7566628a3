import { expect, onTestFinished, test } from "bun:test";
import { join } from "node:path";
import { openTinyThread, TinyText } from "../../test/golden/requests/tiny-text.ts";
import type { EncoderJob, EncoderThread } from "./encoder.ts";
import { ThreadedEncoder } from "./encoder.ts";
import { openHuggingFaceText, openHuggingFaceThread } from "./hugging-face.ts";
import { type JobAnswer, Lane } from "./job-lane.ts";
import type { Text } from "./text.ts";

const LONG = "a".repeat(100_000);
const MEDIUM = "b".repeat(10_000);
const ALWAYS = new AbortController().signal;

/** A thread that answers when it is told to. */
class HeldThread implements EncoderThread {
  readonly jobs: EncoderJob[] = [];
  isStopped = false;
  answer: (answer: JobAnswer) => void = () => {};
  die: (reason: string) => void = () => {};

  post(job: EncoderJob): void {
    this.jobs.push(job);
  }

  listen(answered: (answer: JobAnswer) => void, died: (reason: string) => void): void {
    this.answer = answered;
    this.die = died;
  }

  stop(): void {
    this.isStopped = true;
  }

  finish(...tokens: number[]): void {
    this.answer({ kind: "done", value: [Int32Array.from(tokens)] });
  }
}

function heldEncoder(msMax = 60_000): { encoder: ThreadedEncoder; threads: HeldThread[] } {
  const threads: HeldThread[] = [];
  const encoder = new ThreadedEncoder({
    text: new TinyText(),
    openThread: () => {
      const thread = new HeldThread();
      threads.push(thread);
      return thread;
    },
    limits: { charactersMax: 1_000_000, msMax },
  });
  onTestFinished(() => encoder.close());
  return { encoder, threads };
}

const encode = (encoder: ThreadedEncoder, text: string, signal = ALWAYS) =>
  encoder.encode([text], { addSpecial: false, tokensMax: null, signal });
const failureOf = (promise: Promise<unknown>): Promise<string> =>
  promise.then(
    () => "none",
    (error: Error) => error.message,
  );
const settled = () => new Promise<void>((resolve) => setImmediate(resolve));

test("encode: a short text needs no thread, a longer one does not wait for a long one", async () => {
  const { encoder, threads } = heldEncoder();
  expect(await encode(encoder, "ab")).toEqual([Int32Array.of(97, 98)]);
  expect(threads).toHaveLength(0);
  const long = encode(encoder, LONG);
  const medium = encode(encoder, MEDIUM);
  threads[1]?.finish(2);
  expect(await medium).toEqual([Int32Array.of(2)]);
  threads[0]?.finish(1);
  expect(await long).toEqual([Int32Array.of(1)]);
});

test("encode: a thread that dies fails its text, and is opened again", async () => {
  const { encoder, threads } = heldEncoder();
  const lost = encode(encoder, MEDIUM);
  threads[0]?.die("out of memory");
  expect(await failureOf(lost)).toContain("out of memory");
  const next = encode(encoder, MEDIUM);
  await settled();
  threads[1]?.finish(7);
  expect(await next).toEqual([Int32Array.of(7)]);
});

test("encode: a list of texts is encoded in pieces, in order", async () => {
  const encoder = realEncoder(new TinyText(), openTinyThread);
  const texts = ["", MEDIUM, "x", LONG, ...Array.from({ length: 30 }, (_, i) => `${i}${MEDIUM}`)];
  const options = { addSpecial: true, tokensMax: null, signal: ALWAYS };
  const expected = texts.map((text) => new TinyText().encode(text, { addSpecial: true }));
  expect(await encoder.encode(texts, options)).toEqual(expected);
});

function realEncoder(text: Text, openThread: () => EncoderThread): ThreadedEncoder {
  const limits = { charactersMax: 1_000_000, msMax: 30_000 };
  const encoder = new ThreadedEncoder({ text, openThread, limits });
  onTestFinished(() => encoder.close());
  return encoder;
}

test("encode: what is certainly too long is refused without being encoded", async () => {
  const encoder = realEncoder(new TinyText(), openTinyThread);
  const options = { addSpecial: false, tokensMax: 1000, signal: ALWAYS };
  // The longest token has five bytes.
  expect(await failureOf(encoder.encode(["a".repeat(5001)], options))).toContain(
    "5001 characters, which are at least 1001 input tokens",
  );
  const fits = await encoder.encode(["a".repeat(5000)], options);
  expect(fits[0]).toHaveLength(5000);
  expect(await failureOf(encoder.encode(["a".repeat(1_000_001)], options))).toContain(
    "a text has 1000001 characters, beyond the server's 1000000",
  );
});

test("a thread of a Hugging Face tokenizer does what its text does, errors too", async () => {
  const folder = join(import.meta.dir, "..", "..", "test", "fixtures", "foretoken-3m-hf");
  const text = openHuggingFaceText(folder);
  const encoder = realEncoder(text, () => openHuggingFaceThread(folder));
  const content = "sort 9 27 4 ".repeat(500);
  const options = { addSpecial: false, tokensMax: null, signal: ALWAYS };
  const [tokens] = await encoder.encode([content], options);
  expect(tokens).toEqual(text.encode(content, { addSpecial: false }));
  const messages = [{ role: "user", content }];
  const chat = JSON.stringify({ messages });
  const written = text.renderChat(chat);
  expect(await encoder.encodeChat(chat, options)).toEqual({
    text: written,
    tokens: text.encode(written, { addSpecial: false }),
  });
  const all = tokens ?? new Int32Array(0);
  expect(await encoder.decode(all, ALWAYS)).toBe(text.decode(all, { skipSpecial: false }));
  const names = JSON.parse(await encoder.namesJson(all, ALWAYS));
  expect(names.join("")).toBe(content);
  const foreign = JSON.stringify({ messages, chat_template: "x" });
  const failure = await encoder.encodeChat(foreign, options).catch((error) => error);
  expect(failure).toMatchObject({ code: "invalid_field", field: "chat_template" });
});

test("a thread that cannot open its tokenizer reports the reason", async () => {
  const encoder = realEncoder(new TinyText(), () => openHuggingFaceThread("/nowhere"));
  expect(await failureOf(encode(encoder, MEDIUM))).toContain("/nowhere");
});

test("wait: a job whose turn comes too late is given up by name, and one behind it is not", async () => {
  const threads: HeldThread[] = [];
  const openThread = () => {
    const thread = new HeldThread();
    threads.push(thread);
    return thread;
  };
  const words = { thread: "the tokenizer", unit: "characters", done: "encoded" };
  const limits = { msMax: 60_000, sizeMax: 1e9, waitMsMax: 50 };
  const lane = new Lane<EncoderJob>({ ...limits, openThread, words });
  onTestFinished(() => lane.close());
  const job: EncoderJob = { kind: "decode", tokens: Int32Array.of(1) };
  const first = lane.run(job, 7, ALWAYS);
  expect(lane.wait).toBeNull();
  const second = failureOf(lane.run(job, 9, ALWAYS));
  const about = { what: "a job of 9 characters", forWhom: "the tokenizer", reason: "1 wait there" };
  expect(lane.wait).toMatchObject({ ...about, msMax: 50 });
  const { sinceMs = 0 } = lane.wait ?? {};
  while (performance.now() - sinceMs <= 50) await new Promise((resolve) => setImmediate(resolve));
  const third = lane.run(job, 3, ALWAYS);
  threads[0]?.finish(1);
  expect(await first).toEqual([Int32Array.of(1)]);
  expect(await second).toBe("9 characters waited 0.05 s to be encoded");
  threads[0]?.finish(2);
  expect(await third).toEqual([Int32Array.of(2)]);
});

test("wait: as many late jobs as a lane holds are given up in one turn", async () => {
  let thread = new HeldThread();
  const openThread = () => {
    thread = new HeldThread();
    return thread;
  };
  const words = { thread: "the tokenizer", unit: "characters", done: "encoded" };
  const limits = { msMax: 60_000, sizeMax: 1e9, waitMsMax: 1 };
  const lane = new Lane<EncoderJob>({ ...limits, openThread, words });
  onTestFinished(() => lane.close());
  const job: EncoderJob = { kind: "decode", tokens: Int32Array.of(1) };
  const first = lane.run(job, 1, ALWAYS);
  const late = Array.from({ length: 65_536 }, () =>
    failureOf(lane.run(job, 1, new AbortController().signal)),
  );
  const endMs = performance.now() + 2;
  while (performance.now() <= endMs) await new Promise((resolve) => setImmediate(resolve));
  thread.finish(1);
  await first;
  expect(new Set(await Promise.all(late))).toEqual(
    new Set(["1 characters waited 0.001 s to be encoded"]),
  );
});
