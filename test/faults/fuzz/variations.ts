// Inputs that are almost right: bytes with a few edits, JSON text with other values in some places, lists with elements
// of another list. The edits are those that parsers are often wrong about: bounds of types, lengths that are added to
// offsets, ends that come early, parts that come twice.

import type fc from "fast-check";
import type { Dice } from "../attacks/settings.ts";
import type { Inputs } from "./generator.ts";

type Bytes = Uint8Array<ArrayBuffer>;

const NUMBERS = [0n, 1n, 2n, 0x7fn, 0x80n, 0xffn, 0x7fffn, 0xffffn, 0x7fffffffn, 0x80000000n]
  .concat([0xffffffffn, 0x100000000n, 2n ** 53n - 1n, 2n ** 53n, 2n ** 63n - 1n, 2n ** 63n])
  .concat([2n ** 64n - 1n, 2n ** 64n - 16n]);
const PART_BYTES_MAX = 64;

interface Splice {
  readonly from: number;
  readonly removed: number;
  readonly added: Uint8Array;
}

function spliced(bytes: Uint8Array, { from, removed, added }: Splice): Bytes {
  const to = Math.min(bytes.length, from + removed);
  const out = new Uint8Array(bytes.length - (to - from) + added.length);
  out.set(bytes.subarray(0, from));
  out.set(added, from);
  out.set(bytes.subarray(to), from + added.length);
  return out;
}

const NOTHING = new Uint8Array(0);

function number(dice: Dice): Uint8Array {
  const view = new DataView(new ArrayBuffer(8));
  view.setBigUint64(0, dice.one(NUMBERS), true);
  return new Uint8Array(view.buffer, 0, dice.one([1, 2, 4, 8]));
}

function edit(bytes: Uint8Array, other: Uint8Array, dice: Dice): Bytes {
  const { length } = bytes;
  const from = dice.below(length + 1);
  const count = 1 + dice.below(PART_BYTES_MAX);
  switch (dice.below(7)) {
    case 0: {
      const out = new Uint8Array(bytes);
      const at = dice.below(Math.max(1, length));
      out[at] = (out[at] ?? 0) ^ (1 << dice.below(8));
      return out;
    }
    case 1: {
      const out = new Uint8Array(bytes);
      out[dice.below(Math.max(1, length))] = dice.below(256);
      return out;
    }
    case 2: {
      const added = number(dice);
      return spliced(bytes, { from, removed: added.length, added });
    }
    case 3:
      return spliced(bytes, { from, removed: count, added: NOTHING });
    case 4:
      return spliced(bytes, { from, removed: 0, added: number(dice) });
    case 5: {
      const start = dice.below(other.length + 1);
      const added = other.subarray(start, start + count);
      return spliced(bytes, { from, removed: dice.below(2) * count, added });
    }
    default:
      return new Uint8Array(bytes.subarray(0, from));
  }
}

/** One to three edits. */
export function editedBytes(base: Uint8Array, other: Uint8Array, dice: Dice): Bytes {
  let bytes = edit(base, other, dice);
  for (let more = dice.below(3); more > 0; more -= 1) bytes = edit(bytes, other, dice);
  return bytes;
}

export function bytesInputs(draw: fc.Arbitrary<Uint8Array>): Inputs<Uint8Array> {
  return { draw, vary: editedBytes };
}

const JSON_VALUES = ["null", "true", "false", "0", "-0", "-1", "1", "2", "1.5", "1e309", "-1e999"]
  .concat(["5e-324", "2147483648", "4294967296", "9007199254740993", "18446744073709551616"])
  .concat(['""', '" "', '"a"', '"\\ud800"', '"\\u0000"', '"__proto__"', "[]", "{}", "[[]]"])
  .concat(["[null]", '{"":null}', "[1,2,3]", '["a"]']);
const VALUES = [...JSON_VALUES, "nan", "x", ",", ":", "]", "}", "\n"];

/** A place in a text. */
type Range = readonly [from: number, to: number];

const TOKEN = /"(?:[^"\\]|\\.)*"|-?\d[\d.eE+-]*|\w+|[[\]{},:=]/g;

/** Places of strings, numbers, names and brackets; `values`: of values alone, in whose place another value leaves it JSON. */
function tokensIn(text: string, values: boolean): Range[] {
  const places: Range[] = [];
  for (const { index, 0: token } of text.matchAll(TOKEN)) {
    const end = index + token.length;
    if (!values || (!"[]{},:=".includes(token) && text[end] !== ":")) places.push([index, end]);
  }
  return places;
}

const encoder = new TextEncoder();
const decoder = new TextDecoder();
const EDITED_AS_BYTES = 8;
const FORMS = 5;

/** Other values in a few places; now and then edits of bytes, after which it is JSON no more as a rule. */
export function editedText(base: Uint8Array, other: Uint8Array, dice: Dice): Bytes {
  if (dice.below(EDITED_AS_BYTES) === 0) return editedBytes(base, other, dice);
  const isValue = dice.below(2) === 0;
  const [text, others] = [decoder.decode(base), decoder.decode(other)];
  const [places, sources] = [tokensIn(text, isValue), tokensIn(others, isValue)];
  if (places.length === 0) return editedBytes(base, other, dice);
  let out = "";
  let at = 0;
  let token = 0;
  for (let left = 1 + dice.below(2); left > 0 && token < places.length; left -= 1) {
    token += dice.below(places.length - token);
    const [start, end] = places[token] ?? [at, at];
    const taken = others.slice(...(sources[dice.below(Math.max(1, sources.length))] ?? [0, 0]));
    const value = dice.below(2) === 0 && taken !== "" ? taken : dice.one(JSON_VALUES);
    out += text.slice(at, start);
    out += isValue ? value : replacement({ taken, own: text.slice(start, end), dice });
    at = end;
    token += 1;
  }
  return encoder.encode(out + text.slice(at));
}

function replacement({ taken, own, dice }: { taken: string; own: string; dice: Dice }): string {
  switch (dice.below(FORMS)) {
    case 0:
      return "";
    case 1:
      return `${own},${own}`;
    case 2:
      return taken;
    default:
      return dice.one(VALUES);
  }
}

export function textInputs(draw: fc.Arbitrary<string>): Inputs<Uint8Array> {
  return { draw: draw.map((text) => encoder.encode(text)), vary: editedText };
}

/** Elements of both lists, some of them varied. */
export function listInputs<T>(
  draw: fc.Arbitrary<readonly T[]>,
  vary: (base: T, other: T, dice: Dice) => T,
): Inputs<readonly T[]> {
  return {
    draw,
    vary: (base, other, dice) => {
      const list = [
        ...base.slice(0, dice.below(base.length + 1)),
        ...other.slice(dice.below(other.length + 1)),
      ];
      const at = dice.below(Math.max(1, list.length));
      const [one, two] = [list[at], dice.one(base.length === 0 ? other : base)];
      if (one !== undefined && two !== undefined) list[at] = vary(one, two, dice);
      return list;
    },
  };
}

/** Bytes, and the size of the pieces in which they come. */
export function inPieces(
  inputs: Inputs<Uint8Array>,
  sizeMax: number,
): Inputs<{ bytes: Uint8Array; size: number }> {
  return {
    draw: inputs.draw.map((bytes) => ({ bytes, size: sizeMax })),
    vary: (base, other, dice) => ({
      bytes: inputs.vary(base.bytes, other.bytes, dice),
      size: 1 + dice.below(sizeMax),
    }),
  };
}
