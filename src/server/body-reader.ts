// Makes JSON of bodies without holding up the thread that serves everybody: small ones at once, the others one after the
// other in a thread that packs their lists of numbers. How many wait is bounded by the budget of bodies, as their room
// is kept until they are read.

import { createHash } from "node:crypto";
import { AppError } from "../core/base/errors.ts";
import { parseJson } from "../core/base/json.ts";
import { type PackedJson, unpackLists } from "../core/base/json-lists.ts";
import { jsonProblem } from "./json-problem.ts";
import type { ReadBody } from "./json-thread.ts";

/** Whether lists of token ids may be Int32Array where prompts stand. */
export type IdLists = "plain" | "packed";

export interface JsonBody {
  /** Stands for the bytes. */
  readonly digest: string;
  /** null: there is none. @throws AppError invalid_json. */
  json(lists: IdLists): Promise<unknown>;
}

/** Parsed in some milliseconds. */
const INLINE_BYTES_MAX = 256 * 1024;
/** The largest bodies take about a second on a busy machine. */
const READ_MS_MAX = 30_000;

export class BodyReader {
  #thread: Worker | null = null;
  /** Resolves when everybody who came earlier is done. */
  #turn: Promise<unknown> = Promise.resolve();
  #stop: (error: AppError) => void = () => {};

  /** The bytes are the reader's until it resolves. @throws AppError deadline_exceeded, interrupted, worker_failed. */
  async read(bytes: Uint8Array<ArrayBuffer>, signal: AbortSignal): Promise<JsonBody> {
    if (bytes.length <= INLINE_BYTES_MAX) return inlineBody(bytes);
    const turn = this.#turn.then(() => {
      if (signal.aborted) throw new AppError("interrupted", "the client has gone");
      return this.#ask(bytes);
    });
    this.#turn = turn.catch(() => {});
    const { digest, packed, problem } = await turn;
    if (problem !== null) throw new AppError("invalid_json", problem);
    return { digest, json: async (lists) => await readable(() => unpacked(packed, lists)) };
  }

  close(): void {
    this.#stop(new AppError("draining", "the server stops"));
  }

  async #ask(bytes: Uint8Array<ArrayBuffer>): Promise<ReadBody> {
    const size = bytes.length;
    const { promise, resolve, reject } = Promise.withResolvers<ReadBody>();
    this.#thread ??= opened();
    const thread = this.#thread;
    this.#stop = (error) => {
      this.#thread = null;
      thread.terminate();
      reject(error);
    };
    thread.onmessage = ({ data }: MessageEvent<ReadBody>) => resolve(data);
    thread.onerror = ({ message }) => {
      this.#stop(new AppError("worker_failed", `the thread that reads bodies: ${message}`));
    };
    const timer = setTimeout(() => {
      const message = `a body of ${size} bytes was not read in ${READ_MS_MAX / 1000} s`;
      this.#stop(new AppError("deadline_exceeded", message));
    }, READ_MS_MAX);
    thread.postMessage(bytes, [bytes.buffer]);
    try {
      return await promise;
    } finally {
      clearTimeout(timer);
    }
  }
}

function opened(): Worker {
  const thread = new Worker(new URL("json-thread.ts", import.meta.url).href);
  // A thread that waits keeps no process alive.
  thread.unref();
  return thread;
}

async function inlineBody(bytes: Uint8Array): Promise<JsonBody> {
  const digest = createHash("sha256").update(bytes).digest("hex");
  const value = await readable(() =>
    bytes.length === 0 ? null : parseJson(new TextDecoder("utf-8", { fatal: true }).decode(bytes)),
  );
  return { digest, json: async () => value };
}

async function unpacked(packed: PackedJson, lists: IdLists): Promise<unknown> {
  return await unpackLists(packed, {
    staysPacked: (path) => lists === "packed" && isPrompt(path),
    pause: () => new Promise((resolve) => setImmediate(resolve)),
  });
}

const PROMPT_FIELDS = new Set<unknown>(["prompt", "token_ids", "input_ids", "tokens"]);

/** `prompt`, `prompt.0`, `groups.0.token_ids`, and the other names of the same. */
function isPrompt(path: readonly (string | number)[]): boolean {
  const [first, second, third] = path;
  if (path.length <= 2) {
    return PROMPT_FIELDS.has(first) && (second === undefined || typeof second === "number");
  }
  const isInGroup = first === "groups" && typeof second === "number";
  return path.length === 3 && isInGroup && third === "token_ids";
}

async function readable(read: () => unknown): Promise<unknown> {
  try {
    return await read();
  } catch (cause) {
    throw new AppError("invalid_json", jsonProblem(cause), { cause });
  }
}
