// Takes one field out of an answer in JSON without reading it: values of megabytes that are handed on as they came.

const QUOTE = 0x22;
const BACKSLASH = 0x5c;
const COLON = 0x3a;
const BLANK = 0x20;
const OPENING: ReadonlySet<number> = new Set([0x5b, 0x7b]);
const CLOSING: ReadonlySet<number> = new Set([0x5d, 0x7d]);
const NULL = Buffer.from("null");

export interface Cut {
  /** The JSON text of the value. */
  readonly value: Buffer;
  /** The answer, with null in its place. */
  readonly rest: Buffer;
}

/**
 * The first field called so, at whatever depth, whose value is a text, a list or an object; null: there is none, or its
 * end is missing. Quotes inside of texts are escaped in JSON, so that no text can be taken for the field.
 */
export function cutField(json: Buffer, name: string): Cut | null {
  const key = Buffer.from(JSON.stringify(name));
  for (let at = json.indexOf(key); at >= 0; at = json.indexOf(key, at + 1)) {
    let from = at + key.length;
    while (json[from] === BLANK) from += 1;
    if (json[from] !== COLON) continue;
    from += 1;
    while (json[from] === BLANK) from += 1;
    const first = json[from] ?? 0;
    if (first !== QUOTE && !OPENING.has(first)) continue;
    const to = first === QUOTE ? textEnd(json, from) : nestedEnd(json, from);
    if (to < 0) return null;
    const rest = Buffer.concat([json.subarray(0, from), NULL, json.subarray(to)]);
    return { value: json.subarray(from, to), rest };
  }
  return null;
}

/** Where the text that begins at `from` is over; -1: it is not. */
function textEnd(json: Buffer, from: number): number {
  let end = from;
  do {
    end = json.indexOf(QUOTE, end + 1);
    if (end < 0) return -1;
  } while (isEscaped(json, end));
  return end + 1;
}

function isEscaped(json: Buffer, at: number): boolean {
  let before = at;
  while (json[before - 1] === BACKSLASH) before -= 1;
  return (at - before) % 2 === 1;
}

function nestedEnd(json: Buffer, from: number): number {
  let depth = 0;
  for (let at = from; at < json.length; at += 1) {
    const byte = json[at] ?? 0;
    if (byte === QUOTE) {
      const end = textEnd(json, at);
      if (end < 0) return -1;
      at = end - 1;
    } else if (OPENING.has(byte)) depth += 1;
    else if (CLOSING.has(byte)) {
      depth -= 1;
      if (depth === 0) return at + 1;
    }
  }
  return -1;
}
