// JSON text without its long lists of numbers. Prompts are lists of up to millions of token ids, and a parser takes
// seconds for what a scan of the bytes finds in a tenth of the time: so a thread packs them, and what is left is parsed.
//
//   {"n": 2, "prompt": [1, 2, 3, ...]}  ->  {"n": 2, "prompt": [4127...]}  and  Int32Array 1, 2, 3, ...
//
// A list that is packed leaves itself with one number, `mark` plus its index. The mark is random: who guesses it
// changes a list of the same text, and nothing else. Whatever is not a list of JSON's numbers stays as it is.

import { assert } from "./assert.ts";
import { type JsonLimits, parseJson } from "./json.ts";

export interface PackedJson {
  /** UTF-8. */
  readonly rest: Uint8Array<ArrayBuffer>;
  readonly mark: number;
  /** Of each list: where it begins in `integers` or `doubles`, its length, and 1 if it is in `doubles`. */
  readonly spans: Int32Array<ArrayBuffer>;
  readonly integers: Int32Array<ArrayBuffer>;
  readonly doubles: Float64Array<ArrayBuffer>;
}

type List = Int32Array | Float64Array;
type Holder = Record<string, unknown> | unknown[];

type Path = readonly (string | number)[];

/** Of a list. `holder` null: it is the whole text. */
interface Place {
  readonly index: number;
  readonly holder: Holder | null;
  readonly key: string | number;
  readonly staysPacked: boolean;
}

export interface UnpackOptions {
  /** Whether a list of integers at this path may stay an Int32Array. */
  readonly staysPacked: (path: Path) => boolean;
  /** Awaited between pieces of work of some milliseconds. */
  readonly pause: () => Promise<void>;
  readonly limits?: Partial<JsonLimits>;
}

/** Shorter lists are parsed as fast as they are looked for. */
const LIST_MIN = 64;
/** Numbers that are written out, and lists that are put back, in one go. */
const PIECE_NUMBERS = 65_536;
const PIECE_LISTS = 1_024;
const SPAN = 3;

const QUOTE = 0x22;
const BACKSLASH = 0x5c;
const BRACKET_OPEN = 0x5b;
const BRACKET_CLOSED = 0x5d;
const COMMA = 0x2c;
const MINUS = 0x2d;
const ZERO = 0x30;
const NINE = 0x39;

/** Bytes that a list of numbers is made of: 1, blanks: 2. */
const KINDS = new Uint8Array(256);
for (const byte of Buffer.from("0123456789+-.eE,")) KINDS[byte] = 1;
for (const byte of Buffer.from(" \t\n\r")) KINDS[byte] = 2;

export function packLists(bytes: Uint8Array, mark: number): PackedJson {
  const rest = new Uint8Array(bytes.length);
  const lists: List[] = [];
  let length = 0;
  let copied = 0;
  const copyTo = (end: number) => {
    rest.set(bytes.subarray(copied, end), length);
    length += end - copied;
  };
  for (let at = 0; at < bytes.length; at += 1) {
    const byte = bytes[at];
    if (byte === QUOTE) at = endOfString(bytes, at);
    if (byte !== BRACKET_OPEN) continue;
    const list = listAt(bytes, at);
    if (list === null) continue;
    copyTo(at);
    const written = Buffer.from(`[${mark + lists.length}]`);
    rest.set(written, length);
    length += written.length;
    lists.push(list.numbers);
    copied = list.end;
    at = list.end - 1;
  }
  copyTo(bytes.length);
  return { rest: rest.slice(0, length), mark, ...joined(lists) };
}

/** @throws SyntaxError, JsonLimitError and, for bytes that are not UTF-8, TypeError; as the whole text would. */
export async function unpackLists(packed: PackedJson, options: UnpackOptions): Promise<unknown> {
  const text = new TextDecoder("utf-8", { fatal: true }).decode(packed.rest);
  let value = parseJson(text, options.limits);
  let placed = 0;
  for (const { index, holder, key, staysPacked } of placesIn(value, packed, options.staysPacked)) {
    placed += 1;
    if (placed % PIECE_LISTS === 0) await options.pause();
    const list = listIn(packed, index);
    const isPacked = staysPacked && list instanceof Int32Array;
    const unpacked = isPacked ? list : await written(list, options.pause);
    if (holder === null) value = unpacked;
    // Plain assignment to `__proto__` would set another thing.
    else Object.defineProperty(holder, key, { ...PROPERTY, value: unpacked });
  }
  return value;
}

const PROPERTY = { configurable: true, enumerable: true, writable: true } as const;

/** The closing quote; the end of the bytes where there is none. */
function endOfString(bytes: Uint8Array, start: number): number {
  for (let at = start; ; ) {
    at = bytes.indexOf(QUOTE, at + 1);
    if (at < 0) return bytes.length;
    let slashes = 0;
    while (bytes[at - 1 - slashes] === BACKSLASH) slashes += 1;
    if (slashes % 2 === 0) return at;
  }
}

/** null: it is no list of numbers, or a short one. `end`: behind its bracket. */
function listAt(bytes: Uint8Array, start: number): { numbers: List; end: number } | null {
  let end = start + 1;
  let commas = 0;
  while (KINDS[bytes[end] ?? 0] !== 0) {
    if (bytes[end] === COMMA) commas += 1;
    end += 1;
  }
  if (bytes[end] !== BRACKET_CLOSED || commas + 1 < LIST_MIN) return null;
  const integers = new Int32Array(commas + 1);
  if (readIntegers(bytes, { start: start + 1, end }, integers)) {
    return { numbers: integers, end: end + 1 };
  }
  try {
    const text = Buffer.from(bytes.buffer, bytes.byteOffset + start, end + 1 - start);
    return { numbers: Float64Array.from(JSON.parse(text.toString("latin1"))), end: end + 1 };
  } catch {
    // It is not JSON, which the parser of the rest will report.
    return null;
  }
}

/** false: they are not all integers of 32 bits, written as JSON has them. */
function readIntegers(
  bytes: Uint8Array,
  { start, end }: { start: number; end: number },
  into: Int32Array,
): boolean {
  let at = start;
  for (let i = 0; i < into.length; i += 1) {
    while (KINDS[bytes[at] ?? 0] === 2) at += 1;
    const isNegative = bytes[at] === MINUS;
    if (isNegative) at += 1;
    const first = at;
    let value = 0;
    for (; at < end; at += 1) {
      const digit = bytes[at] ?? 0;
      if (digit < ZERO || digit > NINE) break;
      value = value * 10 + (digit - ZERO);
      if (value > 2 ** 31) return false;
    }
    const isNone = at === first;
    const hasLeadingZero = bytes[first] === ZERO && (at - first > 1 || isNegative);
    if (isNone || hasLeadingZero || (value === 2 ** 31 && !isNegative)) return false;
    into[i] = isNegative ? -value : value;
    while (KINDS[bytes[at] ?? 0] === 2) at += 1;
    if (at < end ? bytes[at] !== COMMA : i + 1 < into.length) return false;
    at += 1;
  }
  return at === end + 1;
}

function joined(lists: readonly List[]): Pick<PackedJson, "spans" | "integers" | "doubles"> {
  const spans = new Int32Array(SPAN * lists.length);
  const lengths = [0, 0];
  for (const [i, list] of lists.entries()) {
    const kind = list instanceof Int32Array ? 0 : 1;
    spans.set([lengths[kind] ?? 0, list.length, kind], SPAN * i);
    lengths[kind] = (lengths[kind] ?? 0) + list.length;
  }
  const integers = new Int32Array(lengths[0] ?? 0);
  const doubles = new Float64Array(lengths[1] ?? 0);
  for (const [i, list] of lists.entries()) {
    const target = list instanceof Int32Array ? integers : doubles;
    target.set(list, spans[SPAN * i]);
  }
  return { spans, integers, doubles };
}

function placesIn(
  value: unknown,
  { mark, spans }: PackedJson,
  staysPacked: UnpackOptions["staysPacked"],
): Place[] {
  const count = spans.length / SPAN;
  const places: Place[] = [];
  const path: (string | number)[] = [];
  const indexOf = (node: unknown): number | null => {
    if (!Array.isArray(node) || node.length !== 1 || typeof node[0] !== "number") return null;
    const index = node[0] - mark;
    return index >= 0 && index < count ? index : null;
  };
  const visit = (node: unknown, holder: Holder | null) => {
    if (typeof node !== "object" || node === null) return;
    const index = indexOf(node);
    if (index !== null) {
      places.push({ index, holder, key: path.at(-1) ?? "", staysPacked: staysPacked(path) });
      return;
    }
    const here = node as Holder;
    const enter = (key: string | number, child: unknown) => {
      if (typeof child !== "object" || child === null) return;
      path.push(key);
      visit(child, here);
      path.pop();
    };
    if (Array.isArray(here)) {
      for (let i = 0; i < here.length; i += 1) enter(i, here[i]);
    } else for (const key of Object.keys(here)) enter(key, here[key]);
  };
  if (count > 0) visit(value, null);
  return places;
}

function listIn({ spans, integers, doubles }: PackedJson, index: number): List {
  const start = spans[SPAN * index] ?? 0;
  const length = spans[SPAN * index + 1] ?? 0;
  const isDouble = spans[SPAN * index + 2] === 1;
  const list = (isDouble ? doubles : integers).subarray(start, start + length);
  assert(list.length === length, "a packed list is all there");
  return list;
}

async function written(list: List, pause: () => Promise<void>): Promise<number[]> {
  const numbers: number[] = [];
  for (let at = 0; at < list.length; at += PIECE_NUMBERS) {
    if (at > 0) await pause();
    for (const number of list.subarray(at, at + PIECE_NUMBERS)) numbers.push(number);
  }
  return numbers;
}
