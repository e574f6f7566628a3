// Reads JSON from outside. The parser takes any depth, but code that walks the value later (serialisation, a schema, a clone
// between threads) recurses, and ends the process when the stack is full; and an object, list or text of two bytes costs a
// hundred times as much memory. So depth and number are bounded.

const LIMITS = {
  /** Levels of JSON schemas and grammars stay below 40; the stack of the smallest thread allows some thousands. */
  depthMax: 128,
  /**
   * Number of objects, lists and texts, names of fields included. The largest good request, a rollout of 16,384 groups
   * with settings of their own, has 300,000; about a second of work.
   */
  entriesMax: 524_288,
};

/** The text exceeds a limit; whether it is JSON is not known. */
export class JsonLimitError extends Error {
  constructor(problem: string) {
    super(problem);
    this.name = "JsonLimitError";
  }
}

/** @throws SyntaxError: the text is not JSON; JsonLimitError. */
export function parseJson(text: string, limits: Partial<typeof LIMITS> = {}): unknown {
  checkLimits(text, { ...LIMITS, ...limits });
  return JSON.parse(withExactSeeds(text));
}

/**
 * Quotes the digits of long seeds, because a double holds only 53 of their 64 bits. In JSON, a quote inside a string has a
 * backslash before it, so the pattern matches names of fields alone.
 */
function withExactSeeds(text: string): string {
  if (!text.includes('seed"')) return text;
  return text.replace(LONG_SEED, '$1"$2"');
}

const LONG_SEED = /("(?:sampling_)?seed"\s*:\s*)(-?\d{16,20})(?=\s*[,}])/g;

function checkLimits(text: string, { depthMax, entriesMax }: typeof LIMITS): void {
  // Most bodies are a few objects around long lists of numbers or long texts: nothing can be beyond a limit there.
  const brackets = count(text, "[", depthMax) + count(text, "{", depthMax);
  if (brackets <= depthMax && brackets + count(text, '"', 2 * entriesMax) / 2 <= entriesMax) return;
  let depth = 0;
  let entries = 0;
  for (let i = 0; i < text.length; i += 1) {
    switch (text.charCodeAt(i)) {
      case QUOTE:
        entries += 1;
        i = endOfString(text, i);
        break;
      case BRACKET_OPEN:
      case BRACE_OPEN:
        entries += 1;
        depth += 1;
        if (depth > depthMax)
          throw new JsonLimitError(`it is nested more than ${depthMax} levels deep`);
        break;
      case BRACKET_CLOSED:
      case BRACE_CLOSED:
        depth -= 1;
        break;
      default:
    }
    if (entries > entriesMax) {
      throw new JsonLimitError(`it holds more than ${entriesMax} objects, lists and texts`);
    }
  }
}

const QUOTE = 0x22;
const BACKSLASH = 0x5c;
const COMMA = 0x2c;
const COLON = 0x3a;
const BRACKET_OPEN = 0x5b;
const BRACKET_CLOSED = 0x5d;
const BRACE_OPEN = 0x7b;
const BRACE_CLOSED = 0x7d;

/** How often `character` occurs; counting stops above `max`. */
function count(text: string, character: string, max: number): number {
  let found = 0;
  let at = text.indexOf(character);
  while (at >= 0 && found <= max) {
    found += 1;
    at = text.indexOf(character, at + 1);
  }
  return found;
}

/** The text of each field of an object, or of each entry of a list by its index. `text` is JSON already. */
export function membersOf(text: string): Map<string, string> {
  const members = new Map<string, string>();
  let name: string | null = null;
  let depth = 0;
  let start = 0;
  const end = (at: number) => {
    const value = text.slice(start, at).trim();
    if (value !== "") members.set(name ?? `${members.size}`, value);
    name = null;
    start = at + 1;
  };
  for (let i = 0; i < text.length; i += 1) {
    switch (text.charCodeAt(i)) {
      case QUOTE:
        i = endOfString(text, i);
        break;
      case BRACKET_OPEN:
      case BRACE_OPEN:
        depth += 1;
        if (depth === 1) start = i + 1;
        break;
      case BRACKET_CLOSED:
      case BRACE_CLOSED:
        depth -= 1;
        if (depth === 0) end(i);
        break;
      case COMMA:
        if (depth === 1) end(i);
        break;
      case COLON:
        if (depth !== 1) break;
        name = JSON.parse(text.slice(start, i));
        start = i + 1;
        break;
      default:
    }
  }
  return members;
}

/** The JSON text of an object with these fields, whose values are JSON texts. */
export function objectOf(members: ReadonlyMap<string, string>): string {
  const fields = [...members].map(([name, value]) => `${JSON.stringify(name)}:${value}`);
  return `{${fields.join(",")}}`;
}

/** The index of the quote that closes the string opened at `start`; the text's length if there is none. */
function endOfString(text: string, start: number): number {
  for (let at = start; ; ) {
    at = text.indexOf('"', at + 1);
    if (at < 0) return text.length;
    let slashes = 0;
    while (text.charCodeAt(at - 1 - slashes) === BACKSLASH) slashes += 1;
    if (slashes % 2 === 0) return at;
  }
}
