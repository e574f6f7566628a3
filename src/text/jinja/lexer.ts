// Tokens of a template, with transformers' settings: the line break after a block is removed (trim_blocks), and so are
// blanks between the beginning of a line and a block (lstrip_blocks).

import { TemplateError } from "./values.ts";

export interface Token {
  /** text: outside of tags; begin, end: of a tag, with its brackets; the others are inside tags. */
  readonly kind: "text" | "begin" | "end" | "name" | "string" | "integer" | "float" | "operator";
  readonly value: string;
}

const TAG = /\{%|\{\{|\{#/g;
const RAW = /\{%[-+]?\s*raw\s*(?:-%\}\s*|%\})/y;
const RAW_END = /\{%([-+]?)\s*endraw\s*(?:\+%\}|-%\}\s*|%\}\n?)/g;
const COMMENT_END = /\+#\}|-#\}\s*|#\}\n?/g;
const TAG_END = {
  "{%": /\+%\}|-%\}\s*|%\}\n?/y,
  "{{": /-\}\}\s*|\}\}/y,
} as const;
/** Pattern of an expression's words, with the alternatives in Jinja's order. */
const WORD =
  /\s*(?:((?:\d+_)*\d+(?:(?:\.(?:\d+_)*\d+)?e[-+]?(?:\d+_)*\d+|\.(?:\d+_)*\d+))|(0[bB](?:_?[01])+|0[oO](?:_?[0-7])+|0[xX](?:_?[\da-fA-F])+|[1-9](?:_?\d)*|0(?:_?0)*)|([\p{L}_][\p{L}\p{N}_]*)|('(?:[^'\\]|\\[\s\S])*'|"(?:[^"\\]|\\[\s\S])*")|(\/\/|\*\*|==|!=|<=|>=|[-+/*%~[\](){}<>=.:|,;]))/uy;
const CLOSING: Readonly<Record<string, string>> = { "(": ")", "[": "]", "{": "}" };

/** Splits a template into tokens. @throws TemplateError. */
export function tokensOf(template: string): Token[] {
  const source = template.replace(/\r\n?/g, "\n").replace(/\n$/, "");
  const tokens: Token[] = [];
  let at = 0;
  const addText = (end: number, sign: string) => {
    const isLineStart = at === 0 || source[at - 1] === "\n";
    const text = textBefore(source.slice(at, end), sign, isLineStart);
    if (text !== "") tokens.push({ kind: "text", value: text });
  };
  for (;;) {
    const tag = matched(TAG, source, at);
    if (tag === null) {
      addText(source.length, "+");
      return tokens;
    }
    const [begin] = tag;
    const sign = source[tag.index + 2] ?? "";
    // Blanks before what is shown stay.
    addText(tag.index, begin === "{{" && sign !== "-" ? "+" : sign);
    const raw = matched(RAW, source, tag.index);
    if (raw !== null) {
      const start = tag.index + raw[0].length;
      const end = required(matched(RAW_END, source, start), "endraw");
      at = start;
      addText(end.index, end[1] ?? "");
      at = end.index + end[0].length;
    } else if (begin === "{#") {
      const end = required(matched(COMMENT_END, source, tag.index + 2), "#}");
      at = end.index + end[0].length;
    } else {
      tokens.push({ kind: "begin", value: begin });
      const start = tag.index + 2 + Number(sign === "-" || sign === "+");
      at = addWords(source, start, { end: TAG_END[begin as keyof typeof TAG_END], tokens });
      tokens.push({ kind: "end", value: begin });
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

/** Adds the words of a tag; returns the position behind it. An end sign within open brackets does not end the tag. */
function addWords(
  source: string,
  start: number,
  { end, tokens }: { end: RegExp; tokens: Token[] },
): number {
  const open: string[] = [];
  for (let at = start; ; ) {
    const blank = /\s*/y;
    at += matched(blank, source, at)?.[0].length ?? 0;
    const closed = open.length === 0 ? matched(end, source, at) : null;
    if (closed !== null) return at + closed[0].length;
    const word = matched(WORD, source, at);
    if (word === null) {
      const line = source.slice(0, at).split("\n").length;
      const found = at < source.length ? `unexpected ${JSON.stringify(source[at])}` : "no end";
      throw new TemplateError(`${found} in a tag on line ${line}`);
    }
    const [all, float, integer, name, string, operator] = word;
    at += all.length;
    if (float !== undefined) tokens.push({ kind: "float", value: float.replaceAll("_", "") });
    else if (integer !== undefined) {
      tokens.push({ kind: "integer", value: integer.replaceAll("_", "") });
    } else if (name !== undefined) tokens.push({ kind: "name", value: name });
    else if (string !== undefined) tokens.push({ kind: "string", value: unescaped(string) });
    else {
      const value = operator ?? "";
      const closing = CLOSING[value];
      if (closing !== undefined) open.push(closing);
      else if (value === open.at(-1)) open.pop();
      else if (")]}".includes(value)) throw new TemplateError(`unexpected '${value}'`);
      tokens.push({ kind: "operator", value });
    }
  }
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

function unescaped(literal: string): string {
  return literal.slice(1, -1).replace(ESCAPE, (all, x, u, wide, octal, one) => {
    const hex = x ?? u ?? wide;
    if (hex !== undefined) return String.fromCodePoint(Number.parseInt(hex, 16));
    if (octal !== undefined) return String.fromCodePoint(Number.parseInt(octal, 8));
    return ESCAPED[one] ?? all;
  });
}

function matched(pattern: RegExp, source: string, at: number): RegExpExecArray | null {
  pattern.lastIndex = at;
  return pattern.exec(source);
}

function required(found: RegExpExecArray | null, what: string): RegExpExecArray {
  if (found !== null) return found;
  throw new TemplateError(`missing ${what}`);
}
