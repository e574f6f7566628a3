// Tokens of a template, with transformers' settings: the line break after a block is removed (trim_blocks), and so are
// blanks between the beginning of a line and a block (lstrip_blocks). A cursor goes through them.

import { TemplateError } from "./values.ts";

interface Token {
  /** text: outside of tags; begin, end: of a tag, with its brackets; the others are inside tags. */
  readonly kind: "text" | "begin" | "end" | "name" | "string" | "integer" | "float" | "operator";
  readonly value: string;
}

const TAG = /\{%|\{\{|\{#/g;
const RAW = /\{%[-+]?\s*raw\s*(?:-%\}\s*|%\})/y;
/** Ends of what is not parsed, with the sign that strips the text before them. */
const RAW_END = /\{%([-+]?)\s*endraw\s*(?:\+%\}|-%\}\s*|%\}\n?)/g;
const COMMENT_END = /\+#\}|-#\}\s*|#\}\n?/g;
const BLOCK_END = /\+%\}|-%\}\s*|%\}\n?/y;
const SHOWN_END = /-\}\}\s*|\}\}/y;
/** Kinds of an expression's words, in the order in which Jinja tries them. */
const WORDS = {
  float: /(?:\d+_)*\d+(?:(?:\.(?:\d+_)*\d+)?e[-+]?(?:\d+_)*\d+|\.(?:\d+_)*\d+)/,
  integer: /0[bB](?:_?[01])+|0[oO](?:_?[0-7])+|0[xX](?:_?[\da-fA-F])+|[1-9](?:_?\d)*|0(?:_?0)*/,
  name: /[\p{L}_][\p{L}\p{N}_]*/u,
  string: /'(?:[^'\\]|\\[\s\S])*'|"(?:[^"\\]|\\[\s\S])*"/,
  operator: /\/\/|\*\*|==|!=|<=|>=|[-+/*%~[\](){}<>=.:|,;]/,
};
const WORD = new RegExp(
  Object.entries(WORDS)
    .map(([kind, { source }]) => `(?<${kind}>${source})`)
    .join("|"),
  "uy",
);
const BLANKS = /\s*/y;
const CLOSING: Readonly<Record<string, string>> = { "(": ")", "[": "]", "{": "}" };

/** Splits a template into tokens. @throws TemplateError. */
function tokensOf(template: string): Token[] {
  const source = template.replace(/\r\n?/g, "\n").replace(/\n$/, "");
  const tokens: Token[] = [];
  let at = 0;
  const match = (pattern: RegExp, from: number) => {
    pattern.lastIndex = from;
    const found = pattern.exec(source);
    if (found !== null) at = pattern.lastIndex;
    return found;
  };
  const addText = (start: number, end: number, sign: string) => {
    const isLineStart = start === 0 || source[start - 1] === "\n";
    const text = textBefore(source.slice(start, end), sign, isLineStart);
    if (text !== "") tokens.push({ kind: "text", value: text });
  };
  for (;;) {
    const start = at;
    const tag = match(TAG, start);
    if (tag === null) {
      addText(start, source.length, "+");
      return tokens;
    }
    const [begin] = tag;
    const sign = source[at] ?? "";
    // Blanks before what is shown stay.
    addText(start, tag.index, begin === "{{" && sign !== "-" ? "+" : sign);
    if (match(RAW, tag.index) !== null) {
      const inside = at;
      const end = required(match(RAW_END, inside), "endraw");
      addText(inside, end.index, end[1] ?? "");
    } else if (begin === "{#") required(match(COMMENT_END, at), "#}");
    else {
      tokens.push({ kind: "begin", value: begin });
      if (sign === "-" || sign === "+") at += 1;
      addWords(begin === "{%" ? BLOCK_END : SHOWN_END);
      tokens.push({ kind: "end", value: begin });
    }
  }

  /** Adds the words of a tag. Its end sign within open brackets does not end it. */
  function addWords(end: RegExp): void {
    const open: string[] = [];
    for (;;) {
      match(BLANKS, at);
      if (open.length === 0 && match(end, at) !== null) return;
      const words = match(WORD, at)?.groups;
      if (words === undefined) {
        const line = source.slice(0, at).split("\n").length;
        const found = at < source.length ? `unexpected ${JSON.stringify(source[at])}` : "no end";
        throw new TemplateError(`${found} in a tag on line ${line}`);
      }
      for (const kind of ["float", "integer", "name", "string", "operator"] as const) {
        const value = words[kind];
        if (value !== undefined) tokens.push({ kind, value });
      }
      const { operator = "" } = words;
      const closing = CLOSING[operator];
      if (closing !== undefined) open.push(closing);
      else if (operator !== "" && operator === open.at(-1)) open.pop();
      else if (/^[)\]}]/.test(operator)) throw new TemplateError(`unexpected '${operator}'`);
    }
  }
}

/** Text before a tag, without its last line if that is blank. `isLineStart`: whether the text begins a line. */
function textBefore(text: string, sign: string, isLineStart: boolean): string {
  if (sign === "-") return text.replace(/\s+$/, "");
  const line = text.lastIndexOf("\n") + 1;
  const strips = sign !== "+" && (line > 0 || isLineStart);
  return strips && text.slice(line).trim() === "" ? text.slice(0, line) : text;
}

function required(found: RegExpExecArray | null, what: string): RegExpExecArray {
  if (found !== null) return found;
  throw new TemplateError(`missing ${what}`);
}

const ESCAPE = /\\(?:x([\da-f]{2})|u([\da-f]{4})|U([\da-f]{8})|([0-7]{1,3})|([\s\S]))/gi;
const ESCAPED: Readonly<Record<string, string>> = {
  "\n": "",
  a: "\x07",
  b: "\b",
  f: "\f",
  n: "\n",
  r: "\r",
  t: "\t",
  v: "\v",
  "\\": "\\",
  "'": "'",
  '"': '"',
};

/** The text that a string token means. */
export function unescaped(literal: string): string {
  return literal.slice(1, -1).replace(ESCAPE, (all, x, u, wide, octal, one) => {
    const hex = x ?? u ?? wide;
    if (hex !== undefined) return String.fromCodePoint(Number.parseInt(hex, 16));
    if (octal !== undefined) return String.fromCodePoint(Number.parseInt(octal, 8));
    return ESCAPED[one] ?? all;
  });
}

const OVER: Token = { kind: "end", value: "" };

export class TokenCursor {
  readonly #tokens: readonly Token[];
  #at = 0;

  /** @throws TemplateError. */
  constructor(template: string) {
    this.#tokens = tokensOf(template);
  }

  get isOver(): boolean {
    return this.#at >= this.#tokens.length;
  }

  get upcoming(): Token {
    return this.#tokens[this.#at] ?? OVER;
  }

  next(): Token {
    if (this.isOver) throw new TemplateError("the template ends within a tag");
    const token = this.upcoming;
    this.#at += 1;
    return token;
  }

  /** Whether these operators or names follow. */
  isNext(...values: readonly string[]): boolean {
    return values.every((value, i) => {
      const token = this.#tokens[this.#at + i];
      return (token?.kind === "operator" || token?.kind === "name") && token.value === value;
    });
  }

  skip(...values: readonly string[]): boolean {
    const isThere = this.isNext(...values);
    if (isThere) this.#at += values.length;
    return isThere;
  }

  expect(value: string): void {
    if (!this.skip(value)) this.#wrong(`'${value}'`);
  }

  name(): string {
    return this.upcoming.kind === "name" ? this.next().value : this.#wrong("a name");
  }

  /** The name of an argument that is given by name, which is consumed with its sign; null: another follows. */
  keyword(): string | null {
    const { kind, value } = this.upcoming;
    return kind === "name" && this.skip(value, "=") ? value : null;
  }

  /** Parses entries with commas between them, up to the closing bracket. */
  list<T>(close: string, entry: () => T): T[] {
    const all: T[] = [];
    while (!this.skip(close)) {
      all.push(entry());
      if (!this.isNext(close)) this.expect(",");
    }
    return all;
  }

  end(): void {
    const { kind, value } = this.next();
    if (kind !== "end") throw new TemplateError(`unexpected '${value}' at the end of a tag`);
  }

  #wrong(expected: string): never {
    throw new TemplateError(`expected ${expected}, got '${this.next().value}'`);
  }
}
