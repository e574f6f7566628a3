// Reads a template into functions that write it, statement by statement.

import { type Expression, ExpressionParser, Scope } from "./expressions.ts";
import {
  type Callable,
  Fields,
  isTrue,
  itemsOf,
  shown,
  TemplateError,
  Tuple,
  type Value,
} from "./values.ts";

export interface Program {
  readonly write: (scope: Scope) => string;
  /** Whether the template loops over the parts of a message's content, as vLLM sees it (renderers/hf.py). */
  readonly loopsOverParts: boolean;
}

/** Parses a template. @throws TemplateError. */
export function parsed(template: string): Program {
  const parser = new Parser(template);
  const body = parser.body([]);
  return { write: (scope) => textBy(body, scope), loopsOverParts: parser.loopsOverParts };
}

/** Writes to `out`; returns `BREAK` or `CONTINUE` if it jumps, else anything. */
type Statement = (scope: Scope, out: string[]) => unknown;
const BREAK = Symbol("break");
const CONTINUE = Symbol("continue");

interface Target {
  readonly assign: (scope: Scope, value: Value) => void;
  /** null: it is not one name. */
  readonly name: string | null;
}

interface Macro {
  readonly name: string;
  readonly parameters: readonly (readonly [name: string, initial: Expression | null])[];
}

class Parser extends ExpressionParser {
  /** Loops and assignments by the paths of what they loop over and assign. `macro`: the enclosing one. */
  readonly #loops: { target: string | null; path: string | undefined; macro: Macro | null }[] = [];
  readonly #aliases: { name: string; path: string | undefined }[] = [];
  #macro: Macro | null = null;

  /** Parses statements up to a tag that begins with one of `ends`, which is not consumed; none: up to the end. */
  body(ends: readonly string[]): Statement {
    const all: Statement[] = [];
    while (!this.isOver) {
      const { kind, value } = this.next();
      if (kind === "text") all.push((_, out) => out.push(value));
      else if (value === "{{") {
        const run = this.tuple();
        this.end();
        all.push((scope, out) => out.push(shown(run(scope))));
      } else if (ends.some((end) => this.isNext(end))) return sequence(all);
      else all.push(this.#statement(this.name()));
    }
    if (ends.length > 0) throw new TemplateError(`missing ${ends.at(-1)}`);
    return sequence(all);
  }

  /** Whether a loop is over the content of what a loop over the messages, or an alias of theirs, has. */
  get loopsOverParts(): boolean {
    const lists = new Set<string | undefined>(["messages"]);
    // A set grows under its own iteration.
    for (const list of lists) {
      for (const { name, path } of this.#aliases) if (path === list) lists.add(name);
    }
    const over = this.#loops.filter(({ path }) => path !== undefined && lists.has(path));
    const contents = new Set(over.map(({ target }) => `${target}.content`));
    const isContent = (path: string | undefined) => path !== undefined && contents.has(path);
    const getsContent = ({ name, parameters }: Macro, parameter: string) => {
      const index = parameters.findIndex(([own]) => own === parameter);
      return this.calls.some(({ path, given: { positional, named } }) => {
        if (path !== name) return false;
        return isContent(positional[index]?.path) || isContent(named.get(parameter)?.path);
      });
    };
    return this.#loops.some(({ path, macro }) => {
      if (path === undefined || isContent(path)) return path !== undefined;
      return macro === null ? path === "content" : getsContent(macro, path);
    });
  }

  #statement(name: string): Statement {
    switch (name) {
      case "if":
        return this.#if();
      case "for":
        return this.#for();
      case "set":
        return this.#set();
      case "macro":
        return this.#macroBlock();
      case "generation": {
        this.end();
        const body = this.#block("endgeneration");
        return (scope, out) => body(new Scope(scope), out);
      }
      case "break":
      case "continue":
        this.end();
        return () => (name === "break" ? BREAK : CONTINUE);
      default:
        throw new TemplateError(`the statement '${name}' is not supported`);
    }
  }

  #block(end: string): Statement {
    const body = this.body([end]);
    this.name();
    this.end();
    return body;
  }

  /** Parses the `else` of a statement, if it has one, up to its end. */
  #otherwise(end: string): Statement | null {
    const hasElse = this.name() === "else";
    this.end();
    return hasElse ? this.#block(end) : null;
  }

  #if(): Statement {
    const test = this.tuple(() => this.infix());
    this.end();
    const then = this.body(["elif", "else", "endif"]);
    const otherwise = this.skip("elif") ? this.#if() : this.#otherwise("endif");
    return (scope, out) => (isTrue(test(scope)) ? then : otherwise)?.(scope, out);
  }

  #for(): Statement {
    const { assign, name: target } = this.#target();
    this.expect("in");
    const list = this.tuple(() => this.infix());
    const filter = this.skip("if") ? this.expression() : null;
    this.end();
    this.#loops.push({ target, path: list.path, macro: this.#macro });
    const body = this.body(["else", "endfor"]);
    const otherwise = this.#otherwise("endfor");
    const scopeOf = (outer: Scope, one: Value) => {
      const scope = new Scope(outer);
      assign(scope, one);
      return scope;
    };
    return (scope, out) => {
      const all = itemsOf(list(scope));
      const items = filter ? all.filter((one) => isTrue(filter(scopeOf(scope, one)))) : all;
      for (const [i, one] of items.entries()) {
        const own = scopeOf(scope, one);
        own.set("loop", loopAt(items, i));
        if (body(own, out) === BREAK) break;
      }
      return items.length === 0 ? otherwise?.(new Scope(scope), out) : undefined;
    };
  }

  #set(): Statement {
    const { assign, name } = this.#target(true);
    if (this.skip("=")) {
      const value = this.tuple();
      this.end();
      if (name !== null) this.#aliases.push({ name, path: value.path });
      return (scope) => assign(scope, value(scope));
    }
    let text: Value = "";
    const filtered = this.filters(() => text);
    this.end();
    const body = this.#block("endset");
    return (scope) => {
      text = textBy(body, new Scope(scope));
      assign(scope, filtered(scope));
    };
  }

  #macroBlock(): Statement {
    const name = this.name();
    this.expect("(");
    const parameters = this.list(")", () => {
      const own = this.name();
      return [own, this.skip("=") ? this.expression() : null] as const;
    });
    this.end();
    const macro = { name, parameters };
    const around = this.#macro;
    this.#macro = macro;
    const body = this.#block("endmacro");
    this.#macro = around;
    return (scope) => scope.set(name, macroOf(macro, body, scope));
  }

  /** Parses the target of an assignment: names, or an attribute of a namespace. */
  #target(takesAttribute = false): Target {
    const all: Target[] = [];
    do {
      if (this.skip("(")) {
        all.push({ ...this.#target(), name: null });
        this.expect(")");
        continue;
      }
      const name = this.name();
      if (takesAttribute && this.skip(".")) {
        const attribute = this.name();
        const assign: Target["assign"] = (scope, value) => {
          const object = scope.get(name);
          const set = object instanceof Fields ? object.set : null;
          if (set === null) {
            throw new TemplateError("cannot assign attribute on non-namespace object");
          }
          set(attribute, value);
        };
        all.push({ assign, name: null });
      } else all.push({ assign: (scope, value) => scope.set(name, value), name });
    } while (this.skip(","));
    const [first] = all;
    if (all.length === 1 && first !== undefined) return first;
    const assign: Target["assign"] = (scope, value) => {
      const items = itemsOf(value);
      if (items.length !== all.length) {
        throw new TemplateError(`cannot unpack ${items.length} values into ${all.length} names`);
      }
      for (const [i, one] of all.entries()) one.assign(scope, items[i]);
    };
    return { assign, name: null };
  }
}

function sequence(all: readonly Statement[]): Statement {
  return (scope, out) => {
    for (const statement of all) {
      const jump = statement(scope, out);
      if (jump === BREAK || jump === CONTINUE) return jump;
    }
  };
}

function textBy(body: Statement, scope: Scope): string {
  const out: string[] = [];
  body(scope, out);
  return out.join("");
}

function macroOf({ parameters }: Macro, body: Statement, scope: Scope): Callable {
  const known = parameters.map(([name]) => name);
  return (given, named) => {
    const inner = new Scope(scope, [
      ["varargs", Tuple.from(given.slice(parameters.length))],
      ["kwargs", new Map([...named].filter(([name]) => !known.includes(name)))],
    ]);
    for (const [i, [name, initial]] of parameters.entries()) {
      if (i < given.length) inner.set(name, given[i]);
      else inner.set(name, named.has(name) ? named.get(name) : initial?.(inner));
    }
    return textBy(body, inner);
  };
}

/** The variable `loop` in iteration `i`. */
function loopAt(items: readonly Value[], i: number): Fields {
  const values: Readonly<Record<string, Value>> = {
    index: BigInt(i + 1),
    index0: BigInt(i),
    revindex: BigInt(items.length - i),
    revindex0: BigInt(items.length - i - 1),
    first: i === 0,
    last: i === items.length - 1,
    length: BigInt(items.length),
    previtem: i === 0 ? undefined : items[i - 1],
    nextitem: items[i + 1],
    cycle: (given) => given[i % given.length],
  };
  return new Fields((name) => values[name]);
}
