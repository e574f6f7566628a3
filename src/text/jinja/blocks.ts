// The parts of a parsed template: statements that write, and the scopes of their variables.

import { type Callable, Fields, shown, TemplateError, Tuple, type Value } from "./values.ts";

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

export type Evaluate = (scope: Scope) => Value;
/** Writes to `out`; returns a jump out of the enclosing loop, if any. */
export type Statement = (scope: Scope, out: string[]) => "break" | "continue" | undefined;
export type Assign = (scope: Scope, value: Value) => void;

export type Parameters = readonly (readonly [name: string, initial: Evaluate | null])[];

export function sequence(all: readonly Statement[]): Statement {
  return (scope, out) => {
    for (const statement of all) {
      const jump = statement(scope, out);
      if (jump !== undefined) return jump;
    }
    return undefined;
  };
}

export function doing(act: (scope: Scope) => unknown): Statement {
  return (scope) => {
    act(scope);
    return undefined;
  };
}

export function writing(run: Evaluate): Statement {
  return (scope, out) => {
    out.push(shown(run(scope)));
    return undefined;
  };
}

export function textBy(body: Statement, scope: Scope): string {
  const out: string[] = [];
  body(scope, out);
  return out.join("");
}

export function setAttribute(object: Value, name: string, value: Value): void {
  const set = object instanceof Fields ? object.set : null;
  if (set === null) throw new TemplateError("cannot assign attribute on non-namespace object");
  set(name, value);
}

export function macroOf(parameters: Parameters, body: Statement, scope: Scope): Callable {
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
export function loopAt(items: readonly Value[], i: number): Fields {
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
