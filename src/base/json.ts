// Reads JSON that came from outside. Parsers take any depth, but whatever walks the value later (writing it again, a
// schema, a clone between threads) recurses, and ends the process when the stack is full. So depth is bounded here.

/** JSON schemas and grammars stay below 40; the stack of the smallest thread takes some thousands. */
export const JSON_DEPTH_MAX = 128;

export class JsonDepthError extends Error {
  constructor(depthMax: number) {
    super(`it is nested more than ${depthMax} levels deep`);
    this.name = "JsonDepthError";
  }
}

/** @throws SyntaxError: it is not JSON; JsonDepthError. */
export function parseJson(text: string, depthMax: number = JSON_DEPTH_MAX): unknown {
  if (isDeeper(text, depthMax)) throw new JsonDepthError(depthMax);
  return JSON.parse(text);
}

/** Whether it nests deeper, if it is JSON. */
function isDeeper(text: string, depthMax: number): boolean {
  // Most bodies are a few objects around long lists or texts: they have too few brackets for any such depth.
  if (count(text, "[", depthMax) + count(text, "{", depthMax) <= depthMax) return false;
  let depth = 0;
  for (let i = 0; i < text.length; i += 1) {
    switch (text.charCodeAt(i)) {
      case QUOTE:
        i = endOfString(text, i);
        break;
      case BRACKET_OPEN:
      case BRACE_OPEN:
        depth += 1;
        if (depth > depthMax) return true;
        break;
      case BRACKET_CLOSED:
      case BRACE_CLOSED:
        depth -= 1;
        break;
      default:
    }
  }
  return false;
}

const QUOTE = 0x22;
const BACKSLASH = 0x5c;
const BRACKET_OPEN = 0x5b;
const BRACKET_CLOSED = 0x5d;
const BRACE_OPEN = 0x7b;
const BRACE_CLOSED = 0x7d;

/** Stops counting where there are more than `max`. */
function count(text: string, character: string, max: number): number {
  let found = 0;
  let at = text.indexOf(character);
  while (at >= 0 && found <= max) {
    found += 1;
    at = text.indexOf(character, at + 1);
  }
  return found;
}

/** The index of the quote that ends the string whose first quote is at `start`; the text's end where none does. */
function endOfString(text: string, start: number): number {
  for (let at = start; ; ) {
    at = text.indexOf('"', at + 1);
    if (at < 0) return text.length;
    let slashes = 0;
    while (text.charCodeAt(at - 1 - slashes) === BACKSLASH) slashes += 1;
    if (slashes % 2 === 0) return at;
  }
}
