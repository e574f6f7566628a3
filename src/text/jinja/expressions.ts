// Reads expressions into functions of the variables: operators by their strength (Pratt's method). Filters, tests, methods and
// functions that this engine lacks are found here, before there is any chat.

import { FILTERS, TESTS } from "./library.ts";
import { attributeOf, itemOf, LACKING, type Operation, operation, sliced } from "./operations.ts";
import { TokenCursor, unescaped } from "./tokens.ts";
import {
  type Callable,
  isTrue,
  type Named,
  TemplateError,
  Tuple,
  typeOf,
  type Value,
} from "./values.ts";

/** The variables of a block, which shadow those of the enclosing block. */
export class Scope extends Map<string, Value> {
  readonly #outer: Scope | null;

  constructor(outer: Scope | null, values: Iterable<readonly [string, Value]> = []) {
    super(values);
    this.#outer = outer;
  }

  override get(name: string): Value {
    return this.has(name) ? super.get(name) : this.#outer?.get(name);
  }
}

export interface Expression {
  (scope: Scope): Value;
  /** Its name with attributes (`message.content`), whatever filters and slices are applied to it. */
  path?: string | undefined;
  /** The value of a literal. */
  literal?: Value;
}

interface Arguments {
  readonly positional: readonly Expression[];
  readonly named: ReadonlyMap<string, Expression>;
}

/** A call in an expression, by the paths of what it calls and gets. */
export interface Call {
  readonly path: string;
  readonly given: Arguments;
}

const CONSTANTS: ReadonlyMap<string, Value> = new Map(
  Object.entries({ true: true, True: true, false: false, False: false, none: null, None: null }),
);
/** Infix operators, the weakest first; those of a row are equally strong. */
const LEVELS = [
  ["or"],
  ["and"],
  ["==", "!=", "<=", ">=", "<", ">", "in", "not in"],
  ["+", "-"],
  ["~"],
  ["*", "/", "//", "%"],
  ["**"],
];
const STRENGTHS = new Map(LEVELS.flatMap((row, level) => row.map((operator) => [operator, level])));
const COMPARISON = 2;
/** Words after a test that are not its argument. */
const NO_ARGUMENT = ["else", "or", "and", "if", "in", "is", "not"];
const NOTHING: Arguments = { positional: [], named: new Map() };

export class ExpressionParser extends TokenCursor {
  protected readonly calls: Call[] = [];

  /** Parses one expression, or a tuple of several with commas between them. */
  tuple(one: () => Expression = () => this.expression()): Expression {
    const first = one();
    if (!this.isNext(",")) return first;
    const all = [first];
    while (this.skip(",")) if (this.upcoming.kind !== "end" && !this.isNext(")")) all.push(one());
    return (scope) => Tuple.from(all, (part) => part(scope));
  }

  expression(): Expression {
    const then = this.infix();
    if (!this.skip("if")) return then;
    const test = this.infix();
    const otherwise = this.skip("else") ? this.expression() : () => undefined;
    return (scope) => (isTrue(test(scope)) ? then : otherwise)(scope);
  }

  /** Parses operators that are at least as strong as the level, and what they join. */
  infix(level = 0): Expression {
    let left: Expression;
    if (level <= COMPARISON && this.skip("not")) {
      const negated = this.infix(COMPARISON);
      left = (scope) => !isTrue(negated(scope));
    } else left = this.#unary();
    for (;;) {
      const operator = this.#operator(level);
      if (operator === null) return left;
      left = this.#joined(left, operator);
    }
  }

  /** Takes the next infix operator; null: none follows that is at least as strong. */
  #operator(level: number): string | null {
    const operator = this.isNext("not", "in") ? "not in" : this.upcoming.value;
    const isThere = (STRENGTHS.get(operator) ?? -1) >= level && this.skip(...operator.split(" "));
    return isThere ? operator : null;
  }

  #joined(left: Expression, operator: string): Expression {
    const level = STRENGTHS.get(operator) ?? 0;
    const right = this.infix(level + 1);
    if (operator === "or" || operator === "and") {
      return (scope) => {
        const value = left(scope);
        return isTrue(value) === (operator === "or") ? value : right(scope);
      };
    }
    const operate = operation(operator);
    if (level === COMPARISON) return this.#compared(left, [[operate, right]]);
    return (scope) => operate(left(scope), right(scope));
  }

  /** Comparisons; `a < b < c` means that both hold. */
  #compared(first: Expression, rest: [Operation, Expression][]): Expression {
    for (;;) {
      const operator = this.#operator(COMPARISON);
      if (operator === null) break;
      rest.push([operation(operator), this.infix(COMPARISON + 1)]);
    }
    return (scope) => {
      let left = first(scope);
      return rest.every(([operate, next]) => {
        const right = next(scope);
        const holds = isTrue(operate(left, right));
        left = right;
        return holds;
      });
    };
  }

  #unary(takesFilters = true): Expression {
    const { value: sign } = this.upcoming;
    let value: Expression;
    if (this.skip("-") || this.skip("+")) {
      const inner = this.#unary(false);
      const operate = operation(sign);
      value = (scope) => operate(0n, inner(scope));
    } else value = this.#primary();
    const whole = this.#postfix(value);
    return takesFilters ? this.filters(whole) : whole;
  }

  #primary(): Expression {
    const { kind, value } = this.next();
    if (kind === "integer") return literal(BigInt(value.replaceAll("_", "")));
    if (kind === "float") return literal(Number(value.replaceAll("_", "")));
    if (kind === "name") {
      if (CONSTANTS.has(value)) return literal(CONSTANTS.get(value));
      return at(value, (scope) => scope.get(value));
    }
    if (kind === "string") {
      let text = unescaped(value);
      while (this.upcoming.kind === "string") text += unescaped(this.next().value);
      return literal(text);
    }
    if (value === "(") {
      if (this.skip(")")) return literal(new Tuple());
      const inner = this.tuple();
      this.expect(")");
      return inner;
    }
    if (value === "[") {
      const all = this.list("]", () => this.expression());
      return (scope) => all.map((one) => one(scope));
    }
    if (value !== "{") throw new TemplateError(`unexpected '${value}'`);
    const all = this.list("}", () => {
      const key = this.expression();
      this.expect(":");
      return [key, this.expression()] as const;
    });
    return (scope) => new Map(all.map(([key, one]) => [key(scope), one(scope)]));
  }

  #postfix(start: Expression): Expression {
    let value = start;
    for (;;) {
      if (this.skip(".")) value = this.#attribute(value);
      else if (this.skip("[")) value = this.#subscript(value);
      else if (this.skip("(")) value = this.#call(value);
      else return value;
    }
  }

  #attribute(object: Expression): Expression {
    const { kind, value: name } = this.next();
    const { path } = object;
    if (kind === "integer") return (scope) => itemOf(object(scope), BigInt(name));
    if (LACKING.has(name) && this.isNext("(")) throw lacking("method", name);
    return at(path && `${path}.${name}`, (scope) => attributeOf(object(scope), name, path));
  }

  #subscript(object: Expression): Expression {
    const parts: (Expression | null)[] = [];
    do {
      const isNone = this.isNext(":") || this.isNext("]");
      parts.push(isNone ? null : this.tuple());
    } while (this.skip(":"));
    this.expect("]");
    const { path } = object;
    const [key = null] = parts;
    if (parts.length > 1 || key === null) {
      const bounds = (scope: Scope) => parts.map((one) => one?.(scope) ?? null);
      return at(path, (scope) => sliced(object(scope), bounds(scope)));
    }
    const name = typeof key.literal === "string" ? key.literal : undefined;
    const whole = path !== undefined && name !== undefined ? `${path}.${name}` : undefined;
    return at(whole, (scope) => itemOf(object(scope), key(scope), path));
  }

  #call(callee: Expression): Expression {
    const given = this.#arguments();
    const { path } = callee;
    if (path !== undefined && LACKING.has(path)) throw lacking("function", path);
    if (path !== undefined) this.calls.push({ path, given });
    return (scope) => {
      const called = callee(scope);
      if (called === undefined && path !== undefined) {
        throw new TemplateError(`'${path}' is undefined`);
      }
      if (typeof called !== "function") {
        throw new TemplateError(`'${typeOf(called)}' object is not callable`);
      }
      return called(...valuesOf(given, scope));
    };
  }

  /** Parses arguments behind the opening bracket. */
  #arguments(): Arguments {
    const positional: Expression[] = [];
    const named = new Map<string, Expression>();
    this.list(")", () => {
      const name = this.keyword();
      const value = this.expression();
      if (name === null) positional.push(value);
      else named.set(name, value);
    });
    return { positional, named };
  }

  /** Parses the filters and tests that are applied to an expression. */
  protected filters(start: Expression): Expression {
    let value = start;
    for (;;) {
      if (this.skip("|")) value = this.#filter(value);
      else if (this.skip("is")) value = this.#test(value);
      else return value;
    }
  }

  #filter(value: Expression): Expression {
    const name = this.name();
    const filter = functionOf("filter", name);
    const given = this.skip("(") ? this.#arguments() : NOTHING;
    // `map`, `select` and `reject` get a filter or a test by name.
    const inner = given.positional[Number(name.endsWith("attr"))]?.literal;
    if (typeof inner === "string") {
      if (name === "map") functionOf("filter", inner);
      if (/^(?:select|reject)/.test(name)) functionOf("test", inner);
    }
    return at(value.path, (scope) => {
      const [positional, named] = valuesOf(given, scope);
      return filter([value(scope), ...positional], named);
    });
  }

  #test(value: Expression): Expression {
    const isNegated = this.skip("not");
    const test = functionOf("test", this.name());
    let given = NOTHING;
    if (this.skip("(")) given = this.#arguments();
    else if (this.#beginsArgument()) {
      given = { ...NOTHING, positional: [this.#postfix(this.#primary())] };
    }
    return at(value.path, (scope) => {
      const [positional, named] = valuesOf(given, scope);
      return isTrue(test([value(scope), ...positional], named)) !== isNegated;
    });
  }

  #beginsArgument(): boolean {
    const { kind, value } = this.upcoming;
    if (kind === "name") return !NO_ARGUMENT.includes(value);
    return ["string", "integer", "float"].includes(kind) || value === "[" || value === "{";
  }
}

/** The expression with the path of what it is. */
function at(path: string | undefined, run: Expression): Expression {
  run.path = path;
  return run;
}

function literal(value: Value): Expression {
  const run: Expression = () => value;
  run.literal = value;
  return run;
}

function valuesOf({ positional, named }: Arguments, scope: Scope): [Value[], Named] {
  const values = new Map<string, Value>();
  for (const [name, one] of named) values.set(name, one(scope));
  return [positional.map((one) => one(scope)), values];
}

function functionOf(kind: "filter" | "test", name: string): Callable {
  const found = (kind === "filter" ? FILTERS : TESTS).get(name);
  if (found === undefined) throw lacking(kind, name);
  return found;
}

function lacking(kind: string, name: string): TemplateError {
  return new TemplateError(`the ${kind} '${name}' is not supported`);
}
