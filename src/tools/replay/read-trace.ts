// Reads the trace format: one JSON object, {"name", ..., "groups": [{"group", "prompt", "responses",
// ...}, ...]}. Groups are cut out of the byte stream by their brackets and parsed one by one, so a
// file of any size is read with one group in memory. What is not in `groups` is not looked at.

import { AppError } from "../../core/base/errors.ts";
import { Pieces } from "./pieces.ts";
import {
  type Chunks,
  decoded,
  must,
  nameOf,
  objectOf,
  promptOf,
  RESPONSES_MAX,
  type TraceGroup,
  tokensOf,
  wrong,
} from "./trace.ts";

const QUOTE = 0x22;
const BACKSLASH = 0x5c;
const COLON = 0x3a;
const OPEN_BRACKET = 0x5b;
const CLOSE_BRACKET = 0x5d;
const OPEN_BRACE = 0x7b;
const CLOSE_BRACE = 0x7d;
const SPACE = 0x20;
const GROUPS_KEY = "groups";

/** Brackets around a group: the file's object and its `groups`. */
const GROUP_DEPTH = 2;

/** Throws AppError `invalid_json` or `invalid_field`. `prompt` may be null. */
export async function* readTrace(file: string, chunks: Chunks): AsyncGenerator<TraceGroup> {
  let number = 0;
  for await (const bytes of elements(file, chunks)) {
    const where = `${file}: groups[${number}]`;
    yield groupOf(objectOf(decoded(bytes, where), where), where);
    number += 1;
  }
}

function groupOf(value: Readonly<Record<string, unknown>>, where: string): TraceGroup {
  const name = nameOf(value.group, { where, field: "group" });
  const list = value.responses;
  if (!Array.isArray(list) || list.length > RESPONSES_MAX) {
    const bound = `be an array of at most ${RESPONSES_MAX} responses`;
    throw wrong({ where, field: "responses" }, must(list, bound));
  }
  const responses = list.map((tokens: unknown, i) =>
    tokensOf(tokens, { where, field: `responses[${i}]` }),
  );
  return { name, prompt: promptOf(value.prompt, { where, field: "prompt" }), responses };
}

/** Finds the objects of the array under the key `groups` of the outermost object. */
class Cutter {
  #depth = 0;
  #inString = false;
  #escaped = false;
  /** The last string of the outermost object, while it is read and until something follows it. */
  #key = "";
  #keyEnded = false;
  /** -1: before `groups`; 0: in it; 1: behind it. */
  #phase = -1;

  get phase(): number {
    return this.#phase;
  }

  /** begin: `byte` opens a group; end: it closes one; other: it belongs to no group, or is inside one. */
  take(byte: number): "begin" | "end" | "stray" | "other" {
    if (this.#inString) {
      this.#inText(byte);
      return "other";
    }
    switch (byte) {
      case QUOTE:
        this.#inString = true;
        if (this.#depth === 1) this.#key = "";
        return this.#isBetween() ? "stray" : "other";
      case OPEN_BRACE:
      case OPEN_BRACKET:
        return this.#opens(byte);
      case CLOSE_BRACE:
      case CLOSE_BRACKET:
        return this.#closes();
      case COLON:
        this.#keyEnded = this.#depth === 1;
        return "other";
      default:
        if (byte > SPACE && this.#depth === 1) this.#keyEnded = false;
        return byte > SPACE && byte !== 0x2c && this.#isBetween() ? "stray" : "other";
    }
  }

  /** Directly inside `groups`, where only objects may stand. */
  #isBetween(): boolean {
    return this.#phase === 0 && this.#depth === GROUP_DEPTH;
  }

  #inText(byte: number): void {
    if (this.#escaped) this.#escaped = false;
    else if (byte === BACKSLASH) this.#escaped = true;
    else if (byte === QUOTE) this.#inString = false;
    else if (this.#depth === 1 && this.#key.length <= GROUPS_KEY.length) {
      this.#key += String.fromCharCode(byte);
    }
  }

  #opens(byte: number): "begin" | "stray" | "other" {
    this.#depth += 1;
    if (this.#phase < 0) {
      const isValue = this.#depth === GROUP_DEPTH && this.#keyEnded;
      if (isValue && byte === OPEN_BRACKET && this.#key === GROUPS_KEY) this.#phase = 0;
      this.#keyEnded = false;
      return "other";
    }
    if (this.#phase > 0 || this.#depth !== GROUP_DEPTH + 1) return "other";
    return byte === OPEN_BRACE ? "begin" : "stray";
  }

  #closes(): "end" | "other" {
    this.#depth -= 1;
    if (this.#phase !== 0) return "other";
    if (this.#depth === GROUP_DEPTH) return "end";
    if (this.#depth < GROUP_DEPTH) this.#phase = 1;
    return "other";
  }
}

async function* elements(file: string, chunks: Chunks): AsyncGenerator<Uint8Array> {
  const cutter = new Cutter();
  const pieces = new Pieces();
  let number = 0;
  let inside = false;
  for await (const chunk of chunks) {
    let from = 0;
    for (let i = 0; i < chunk.length; i += 1) {
      const kind = cutter.take(chunk[i] ?? 0);
      if (kind === "other") continue;
      const where = `${file}: groups[${number}]`;
      if (kind === "stray") throw new AppError("invalid_json", `${where}: is not a JSON object`);
      if (kind === "begin") {
        inside = true;
        from = i;
        continue;
      }
      pieces.add(chunk.subarray(from, i + 1), where);
      inside = false;
      number += 1;
      yield pieces.take();
    }
    if (inside) pieces.add(chunk.subarray(from), `${file}: groups[${number}]`);
  }
  if (cutter.phase < 0) {
    const problem = 'is not a trace: a JSON object with an array "groups"';
    throw new AppError("invalid_json", `${file}: ${problem}`);
  }
  if (cutter.phase === 0) {
    throw new AppError("invalid_json", `${file}: ends within groups[${number}]`);
  }
}
