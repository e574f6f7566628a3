// Makes JSON of bodies without holding up the thread that serves everybody: small ones at once, the others one after the
// other in a thread. How many wait is bounded by the budget of bodies, as their room is kept until they are read.

import { createHash } from "node:crypto";
import { AppError, errorText } from "../core/base/errors.ts";
import { waitMsMax } from "../core/base/waits.ts";
import { JsonLimitError, parseJson } from "../proto/json.ts";
import { Lane, openThread } from "../text/job-lane.ts";

/** How long lists of token ids in prompts come out of the reader: as plain arrays, or packed as Int32Array. */
export type IdLists = "plain" | "packed";

export interface ReadBody {
  readonly digest: string;
  /** The body's text, where it may hold a chat; else empty. */
  readonly source: string;
  /** Long lists of token ids in prompts of a large body are packed. */
  readonly value: unknown;
}

/** Bodies up to this size are parsed on the serving thread, which takes some milliseconds. */
const INLINE_BYTES_MAX = 256 * 1024;

export class BodyReader {
  readonly lane = new Lane<Uint8Array>({
    openThread: () => openThread(new URL("./json-thread.ts", import.meta.url), null),
    // The largest bodies take about a second on a busy machine.
    msMax: waitMsMax("thread"),
    sizeMax: Number.POSITIVE_INFINITY,
    words: { thread: "bodies", unit: "bytes of a body", done: "read" },
  });

  /** Parses a body. The caller must not touch `bytes` until it resolves. @throws AppError invalid_json, and as Lane.run. */
  async read(bytes: Uint8Array<ArrayBuffer>, signal: AbortSignal): Promise<ReadBody> {
    if (bytes.length <= INLINE_BYTES_MAX) return readBytes(bytes);
    return (await this.lane.run(bytes, bytes.length, signal)) as ReadBody;
  }

  close(): void {
    this.lane.close();
  }
}

export function readBytes(bytes: Uint8Array): ReadBody {
  const digest = createHash("sha256").update(bytes).digest("hex");
  if (bytes.length === 0) return { digest, source: "", value: null };
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(bytes);
    const source = text.includes("messages") ? text : "";
    return { digest, source, value: parseJson(text) };
  } catch (cause) {
    const problem = cause instanceof JsonLimitError ? "is refused" : "is not JSON";
    throw new AppError("invalid_json", `the body ${problem}: ${errorText(cause)}`, { cause });
  }
}

/** Shorter lists are not packed: they cross between threads as fast as they are. */
const LIST_MIN = 64;
/** Shorter typed arrays are copied between threads, which is as fast as moving them. */
const MOVED_MIN = 65_536;

/** The body with typed arrays for long prompts; buffers of the longest are added to `moves`. */
export function packed(body: unknown, moves: ArrayBuffer[]): unknown {
  return withPrompts(body, (ids) => {
    const isLong = Array.isArray(ids) && ids.length >= LIST_MIN;
    if (!isLong || !ids.every((one) => (one | 0) === one)) return ids;
    const list = Int32Array.from(ids);
    if (list.length >= MOVED_MIN) moves.push(list.buffer);
    return list;
  });
}

export function unpacked(body: unknown): unknown {
  return withPrompts(body, (ids) => (ids instanceof Int32Array ? Array.from(ids) : ids));
}

const PROMPT_FIELDS = new Set(["prompt", "token_ids", "input_ids", "tokens"]);

/** Changes each prompt of a body: `prompt`, `prompt.0`, `groups.0.token_ids`, and the other names of the same. */
function withPrompts(body: unknown, change: (ids: unknown) => unknown): unknown {
  return mapped(body, (value, field) => {
    if (field === "groups" && Array.isArray(value)) {
      const ofGroup = (ids: unknown, name: string) => (name === "token_ids" ? change(ids) : ids);
      return value.map((group) => mapped(group, ofGroup));
    }
    if (!PROMPT_FIELDS.has(field)) return value;
    const isList = Array.isArray(value) && typeof value[0] === "object";
    return isList ? value.map(change) : change(value);
  });
}

/** Changes the values of an object; returns everything else as it is. */
function mapped(value: unknown, change: (one: unknown, key: string) => unknown): unknown {
  if (typeof value !== "object" || value === null || Array.isArray(value)) return value;
  return Object.fromEntries(Object.entries(value).map(([key, one]) => [key, change(one, key)]));
}
