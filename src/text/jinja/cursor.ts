// A position in the tokens of a template, and the ways to advance it.

import type { Token } from "./lexer.ts";
import { TemplateError } from "./values.ts";

export class TokenCursor {
  protected readonly tokens: readonly Token[];
  protected at = 0;

  constructor(tokens: readonly Token[]) {
    this.tokens = tokens;
  }

  /** Parses entries with commas between them, up to the closing bracket. */
  protected list<T>(close: string, entry: () => T): T[] {
    const all: T[] = [];
    while (!this.skip(close)) {
      all.push(entry());
      if (!this.isNext(close)) this.expect(",");
    }
    return all;
  }

  protected isNext(value: string, ahead = 0): boolean {
    const token = this.tokens[this.at + ahead];
    return (token?.kind === "operator" || token?.kind === "name") && token.value === value;
  }

  protected skip(...values: readonly string[]): boolean {
    const isThere = values.every((value, i) => this.isNext(value, i));
    if (isThere) this.at += values.length;
    return isThere;
  }

  protected operator(operators: readonly string[]): string | null {
    return operators.find((one) => this.skip(one)) ?? null;
  }

  protected expect(value: string): void {
    if (this.skip(value)) return;
    throw new TemplateError(`expected '${value}', got '${this.next().value}'`);
  }

  protected next(): Token {
    const token = this.tokens[this.at];
    if (token === undefined) throw new TemplateError("the template ends within a tag");
    this.at += 1;
    return token;
  }

  protected name(): string {
    const { kind, value } = this.next();
    if (kind === "name") return value;
    throw new TemplateError(`expected a name, got '${value}'`);
  }

  protected isEnd(): boolean {
    return this.tokens[this.at]?.kind === "end";
  }

  protected end(): void {
    const { kind, value } = this.next();
    if (kind !== "end") throw new TemplateError(`unexpected '${value}' at the end of a tag`);
  }
}
