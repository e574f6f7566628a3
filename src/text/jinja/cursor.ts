// A position in the tokens of a template, and the ways to advance it.

import { type Token, tokensOf } from "./lexer.ts";
import { TemplateError } from "./values.ts";

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
