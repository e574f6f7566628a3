// Reads a template into functions that write it. Whatever it names and this engine lacks (a statement, a filter, a test, a method of
// Python's strings) is found here, before there is any chat.

import {
  type Assign,
  doing,
  type Evaluate,
  loopAt,
  macroOf,
  type Parameters,
  Scope,
  type Statement,
  sequence,
  setAttribute,
  textBy,
  writing,
} from "./blocks.ts";
import { TokenCursor } from "./cursor.ts";
import { tokensOf } from "./lexer.ts";
import { FILTERS, TESTS } from "./library.ts";
import { LACKING } from "./methods.ts";
import { attributeOf, binary, itemOf, sliced } from "./operations.ts";
import { PartsUse } from "./parts-use.ts";
import { isTrue, itemsOf, TemplateError, Tuple, typeOf, type Value } from "./values.ts";

export interface Program {
  readonly write: (scope: Scope) => string;
  /** Whether the template loops over the parts of a message's content, as vLLM sees it (renderers/hf.py). */
  readonly loopsOverParts: boolean;
}

/** Parses a template. @throws TemplateError. */
export function parsed(template: string): Program {
  const parser = new Parser(tokensOf(template));
  const body = parser.body([]);
  return { write: (scope) => textBy(body, scope), loopsOverParts: parser.use.isThere };
}

interface Given {
  readonly positional: readonly Evaluate[];
  readonly named: ReadonlyMap<string, Evaluate>;
  readonly values: (scope: Scope) => [Value[], Map<string, Value>];
}

const CONSTANTS: ReadonlyMap<string, Value> = new Map(
  Object.entries({ true: true, True: true, false: false, False: false, none: null, None: null }),
);
/** Operators by precedence, the weakest first. */
const LEVELS = [["+", "-"], ["~"], ["*", "/", "//", "%"], ["**"]];
const COMPARISONS = ["==", "!=", "<=", ">=", "<", ">", "in"];
/** Words after a test that are not its argument. */
const NO_ARGUMENT = ["else", "or", "and", "if", "in", "is", "not"];

class Parser extends TokenCursor {
  /** Path of an expression that is a name with attributes (`message.content`), whatever filters and slices are applied to it. */
  readonly #paths = new Map<Evaluate, string>();
  readonly use = new PartsUse();
  #macro: string | null = null;

  /** Parses statements up to a tag that begins with one of `ends`, which is not consumed; none: up to the end. */
  body(ends: readonly string[]): Statement {
    const all: Statement[] = [];
    while (this.at < this.tokens.length) {
      const { kind, value } = this.next();
      if (kind === "text") all.push(writing(() => value));
      else if (value === "{{") {
        all.push(writing(this.#tuple()));
        this.end();
      } else {
        const name = this.name();
        if (ends.includes(name)) {
          this.at -= 1;
          return sequence(all);
        }
        all.push(this.#statement(name));
      }
    }
    if (ends.length > 0) throw new TemplateError(`missing ${ends.at(-1)}`);
    return sequence(all);
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
        return () => name;
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

  #if(): Statement {
    const test = this.#tuple(() => this.#or());
    this.end();
    const then = this.body(["elif", "else", "endif"]);
    let otherwise: Statement | null = null;
    if (this.skip("elif")) otherwise = this.#if();
    else {
      const hasElse = this.name() === "else";
      this.end();
      if (hasElse) otherwise = this.#block("endif");
    }
    return (scope, out) => (isTrue(test(scope)) ? then : otherwise)?.(scope, out);
  }

  #for(): Statement {
    const [assign, target] = this.#target();
    this.expect("in");
    const list = this.#tuple(() => this.#or());
    const filter = this.skip("if") ? this.#expression() : null;
    this.end();
    this.use.loops.push({ target, path: this.#paths.get(list), macro: this.#macro });
    const body = this.body(["else", "endfor"]);
    const hasElse = this.name() === "else";
    this.end();
    const otherwise = hasElse ? this.#block("endfor") : null;
    const inner = (scope: Scope, one: Value) => {
      const own = new Scope(scope);
      assign(own, one);
      return own;
    };
    return (scope, out) => {
      const all = itemsOf(list(scope));
      const items = filter ? all.filter((one) => isTrue(filter(inner(scope, one)))) : all;
      for (const [i, one] of items.entries()) {
        const own = inner(scope, one);
        own.set("loop", loopAt(items, i));
        if (body(own, out) === "break") break;
      }
      return items.length === 0 ? otherwise?.(new Scope(scope), out) : undefined;
    };
  }

  #set(): Statement {
    const [assign, name] = this.#target(true);
    if (this.skip("=")) {
      const value = this.#tuple();
      this.end();
      if (name !== null) this.use.aliases.push([name, this.#paths.get(value)]);
      return doing((scope) => assign(scope, value(scope)));
    }
    let text: Value = "";
    const filtered = this.#filters(() => text);
    this.end();
    const body = this.#block("endset");
    return doing((scope) => {
      text = textBy(body, new Scope(scope));
      assign(scope, filtered(scope));
    });
  }

  #macroBlock(): Statement {
    const name = this.name();
    const parameters = this.#parameters();
    this.end();
    this.use.macros.push([name, parameters.map(([one]) => one)]);
    const around = this.#macro;
    this.#macro = name;
    const body = this.#block("endmacro");
    this.#macro = around;
    return doing((scope) => scope.set(name, macroOf(parameters, body, scope)));
  }

  #parameters(): Parameters {
    this.expect("(");
    return this.list(")", () => {
      const name = this.name();
      return [name, this.skip("=") ? this.#expression() : null] as const;
    });
  }

  /** Parses the target of an assignment: names, or an attribute of a namespace. Also returns the name, if it is a single one. */
  #target(takesAttribute = false): [Assign, string | null] {
    const all: Assign[] = [];
    let name: string | null = null;
    do {
      if (this.skip("(")) {
        all.push(this.#target()[0]);
        this.expect(")");
        continue;
      }
      const own = this.name();
      name = own;
      if (takesAttribute && this.skip(".")) {
        const attribute = this.name();
        name = null;
        all.push((scope, value) => setAttribute(scope.get(own), attribute, value));
      } else all.push((scope, value) => scope.set(own, value));
    } while (this.skip(","));
    const [first] = all;
    if (all.length === 1 && first !== undefined) return [first, name];
    const assign: Assign = (scope, value) => {
      const items = itemsOf(value);
      if (items.length !== all.length) {
        throw new TemplateError(`cannot unpack ${items.length} values into ${all.length} names`);
      }
      for (const [i, one] of all.entries()) one(scope, items[i]);
    };
    return [assign, null];
  }

  /** Parses one expression, or a tuple of several with commas between them. */
  #tuple(one: () => Evaluate = () => this.#expression()): Evaluate {
    const first = one();
    if (!this.isNext(",")) return first;
    const all = [first];
    while (this.skip(",")) if (!this.isEnd() && !this.isNext(")")) all.push(one());
    return (scope) => Tuple.from(all, (run) => run(scope));
  }

  #expression(): Evaluate {
    const then = this.#or();
    if (!this.skip("if")) return then;
    const test = this.#or();
    const otherwise = this.skip("else") ? this.#expression() : () => undefined;
    return (scope) => (isTrue(test(scope)) ? then : otherwise)(scope);
  }

  #or(): Evaluate {
    return this.#joined("or", () => this.#and());
  }

  #and(): Evaluate {
    return this.#joined("and", () => this.#not());
  }

  #joined(word: "or" | "and", next: () => Evaluate): Evaluate {
    const left = next();
    if (!this.skip(word)) return left;
    const right = this.#joined(word, next);
    return (scope) => {
      const value = left(scope);
      return isTrue(value) === (word === "or") ? value : right(scope);
    };
  }

  #not(): Evaluate {
    if (!this.skip("not")) return this.#comparison();
    const value = this.#not();
    return (scope) => !isTrue(value(scope));
  }

  /** Parses comparisons; `a < b < c` means that both hold. */
  #comparison(): Evaluate {
    const first = this.#level(0);
    const rest: [string, Evaluate][] = [];
    for (;;) {
      const operator = this.skip("not", "in") ? "not in" : this.operator(COMPARISONS);
      if (operator === null) break;
      rest.push([operator, this.#level(0)]);
    }
    if (rest.length === 0) return first;
    return (scope) => {
      let left = first(scope);
      return rest.every(([operator, next]) => {
        const right = next(scope);
        const holds = isTrue(binary(operator, left, right));
        left = right;
        return holds;
      });
    };
  }

  #level(index: number): Evaluate {
    const operators = LEVELS[index];
    if (operators === undefined) return this.#unary();
    let left = this.#level(index + 1);
    for (;;) {
      const operator = this.operator(operators);
      if (operator === null) return left;
      const a = left;
      const b = this.#level(index + 1);
      left = (scope) => binary(operator, a(scope), b(scope));
    }
  }

  #unary(takesFilters = true): Evaluate {
    const sign = this.operator(["-", "+"]);
    let value: Evaluate;
    if (sign === null) value = this.#primary();
    else {
      const inner = this.#unary(false);
      value = (scope) => binary(sign, 0n, inner(scope));
    }
    const whole = this.#postfix(value);
    return takesFilters ? this.#filters(whole) : whole;
  }

  #primary(): Evaluate {
    const { kind, value } = this.next();
    if (kind === "integer") return constant(BigInt(value));
    if (kind === "float") return constant(Number(value));
    if (kind === "name") {
      if (CONSTANTS.has(value)) return constant(CONSTANTS.get(value));
      return this.#withPath((scope) => scope.get(value), value);
    }
    if (kind === "string") {
      let text = value;
      while (this.tokens[this.at]?.kind === "string") text += this.next().value;
      return constant(text);
    }
    if (value === "(") {
      if (this.skip(")")) return constant(new Tuple());
      const inner = this.#tuple();
      this.expect(")");
      return inner;
    }
    if (value === "[") {
      const all = this.list("]", () => this.#expression());
      return (scope) => all.map((one) => one(scope));
    }
    if (value !== "{") throw new TemplateError(`unexpected '${value}'`);
    const all = this.list("}", () => {
      const key = this.#expression();
      this.expect(":");
      return [key, this.#expression()] as const;
    });
    return (scope) => new Map(all.map(([key, one]) => [key(scope), one(scope)]));
  }

  #postfix(start: Evaluate): Evaluate {
    let value = start;
    for (;;) {
      if (this.skip(".")) value = this.#attribute(value);
      else if (this.skip("[")) value = this.#subscript(value);
      else if (this.isNext("(")) value = this.#call(value);
      else return value;
    }
  }

  #attribute(object: Evaluate): Evaluate {
    const { kind, value: name } = this.next();
    if (kind === "integer") return (scope) => itemOf(object(scope), BigInt(name));
    if (LACKING.has(name) && this.isNext("(")) {
      throw new TemplateError(`the method '${name}' is not supported`);
    }
    const path = this.#paths.get(object);
    const run: Evaluate = (scope) => attributeOf(object(scope), name, path);
    return path === undefined ? run : this.#withPath(run, `${path}.${name}`);
  }

  #subscript(object: Evaluate): Evaluate {
    const parts: (Evaluate | null)[] = [];
    do {
      const isNone = this.isNext(":") || this.isNext("]");
      parts.push(isNone ? null : this.#tuple());
    } while (this.skip(":"));
    this.expect("]");
    const path = this.#paths.get(object);
    const [key = null] = parts;
    if (parts.length > 1 || key === null) {
      const run: Evaluate = (scope) =>
        sliced(
          object(scope),
          parts.map((one) => one?.(scope) ?? null),
        );
      return path === undefined ? run : this.#withPath(run, path);
    }
    const run: Evaluate = (scope) => itemOf(object(scope), key(scope), path);
    const name = constants.get(key);
    if (path === undefined || typeof name !== "string") return run;
    return this.#withPath(run, `${path}.${name}`);
  }

  #call(callee: Evaluate): Evaluate {
    const given = this.#arguments();
    const path = this.#paths.get(callee);
    if (path !== undefined && LACKING.has(path)) {
      throw new TemplateError(`the function '${path}' is not supported`);
    }
    if (path !== undefined) {
      const positional = given.positional.map((one) => this.#paths.get(one));
      const named = [...given.named].map(([name, one]) => [name, this.#paths.get(one)] as const);
      this.use.calls.push({ name: path, positional, named: new Map(named) });
    }
    return (scope) => {
      const called = callee(scope);
      if (called === undefined && path !== undefined) {
        throw new TemplateError(`'${path}' is undefined`);
      }
      if (typeof called !== "function") {
        throw new TemplateError(`'${typeOf(called)}' object is not callable`);
      }
      return called(...given.values(scope));
    };
  }

  #arguments(): Given {
    this.expect("(");
    const positional: Evaluate[] = [];
    const named = new Map<string, Evaluate>();
    this.list(")", () => {
      if (this.isNext("=", 1)) {
        const name = this.name();
        this.expect("=");
        named.set(name, this.#expression());
      } else positional.push(this.#expression());
    });
    const values = (scope: Scope): [Value[], Map<string, Value>] => [
      positional.map((one) => one(scope)),
      new Map([...named].map(([name, one]) => [name, one(scope)])),
    ];
    return { positional, named, values };
  }

  #filters(start: Evaluate): Evaluate {
    let value = start;
    for (;;) {
      const path = this.#paths.get(value);
      if (this.skip("|")) value = this.#filter(value);
      else if (this.skip("is")) value = this.#test(value);
      else return value;
      if (path !== undefined) this.#paths.set(value, path);
    }
  }

  #filter(value: Evaluate): Evaluate {
    const name = this.name();
    const filter = FILTERS.get(name);
    if (filter === undefined) throw new TemplateError(`the filter '${name}' is not supported`);
    const given = this.isNext("(") ? this.#arguments() : NOTHING;
    const named = given.positional[Number(name.endsWith("attr"))];
    checkNamed(name, named === undefined ? undefined : constants.get(named));
    return (scope) => {
      const [positional, named] = given.values(scope);
      return filter([value(scope), ...positional], named);
    };
  }

  #test(value: Evaluate): Evaluate {
    const isNegated = this.skip("not");
    const name = this.name();
    const test = TESTS.get(name);
    if (test === undefined) throw new TemplateError(`the test '${name}' is not supported`);
    let given = NOTHING;
    if (this.isNext("(")) given = this.#arguments();
    else if (this.#beginsArgument()) {
      const one = this.#postfix(this.#primary());
      given = { ...NOTHING, values: (scope) => [[one(scope)], new Map()] };
    }
    return (scope) => {
      const [positional, named] = given.values(scope);
      return isTrue(test([value(scope), ...positional], named)) !== isNegated;
    };
  }

  #beginsArgument(): boolean {
    const { kind, value } = this.tokens[this.at] ?? { kind: "end", value: "" };
    if (kind === "name") return !NO_ARGUMENT.includes(value);
    return ["string", "integer", "float"].includes(kind) || value === "[" || value === "{";
  }

  #withPath(run: Evaluate, path: string): Evaluate {
    this.#paths.set(run, path);
    return run;
  }
}

const NOTHING: Given = { positional: [], named: new Map(), values: () => [[], new Map()] };

/** Checks the filter or test that `map`, `select` and `reject` get by name. */
function checkNamed(filter: string, name: Value): void {
  const isFilter = filter === "map";
  const isTest = /^(?:select|reject)/.test(filter);
  if (typeof name !== "string" || (!isFilter && !isTest)) return;
  if ((isFilter ? FILTERS : TESTS).has(name)) return;
  throw new TemplateError(`the ${isFilter ? "filter" : "test"} '${name}' is not supported`);
}

/** Values of expressions that are literals. */
const constants = new WeakMap<Evaluate, Value>();

function constant(value: Value): Evaluate {
  const run: Evaluate = () => value;
  constants.set(run, value);
  return run;
}
