// The group index against its brute-force twin: counts, best edges, match states and drafts after every
// change, over random programs of interleaved appends, with small alphabets so that everything repeats.

import { expect, test } from "bun:test";
import fc from "fast-check";
import { SuffixTwin, type TwinDraft } from "../../../test/reference/suffix-twin.ts";
import { type Drafts, SuffixIndex } from "./suffix-index.ts";

interface Model {
  readonly twins: (SuffixTwin | null)[];
}

interface Real {
  readonly index: SuffixIndex;
  readonly handles: (number | null)[];
}

const LARGEST = 0x7fffffff;

function unexpectedFull(): never {
  throw new Error("a group is full");
}

function walk(real: Real, handle: number, text: readonly number[]): number {
  let state = real.index.core.root_state(handle);
  for (const token of text) if (state !== 0) state = real.index.core.state_edge(state, token);
  return state;
}

/** Every substring: reachable, counted right, and its best continuation known. */
function checkSubstrings(real: Real, handle: number, twin: SuffixTwin): void {
  const { core } = real.index;
  expect(core.group_check(handle)).toBe(0);
  for (const text of twin.substrings()) {
    const state = walk(real, handle, text);
    if (state === 0) throw new Error(`${text} is not reachable`);
    if (text.length === 0 || text.length > twin.contextTokens + 31) continue;
    expect([text, core.state_count(state)]).toEqual([text, twin.count(text)]);
    expect([text, core.state_best(state)]).toEqual([text, twin.best(text) ?? -1]);
  }
}

function taken(views: Drafts, query: number): TwinDraft {
  const [from, to] = [views.start[query] ?? 0, views.start[query + 1] ?? 0];
  return {
    tokens: [...views.tokens.subarray(from, to)],
    parents: [...views.parents.subarray(from, to)],
    probabilities: [...views.probabilities.subarray(from, to)],
  };
}

function checkDrafts(real: Real, handle: number, twin: SuffixTwin, probabilityMin: number): void {
  const { index } = real;
  const sequences = twin.outputs.length + 1;
  const queries = Array.from({ length: 2 * sequences }, (_, i) => ({
    sequence: i >> 1,
    tree: i % 2 === 1,
    tokensMax: 1 + ((i * 7) % 32),
    probabilityMin,
  }));
  index.begin(queries.length);
  for (const query of queries) index.draft(handle, query.sequence, query);
  const views = index.step();
  for (const [i, query] of queries.entries()) {
    const wanted = query.tree ? twin.tree(query.sequence, query) : twin.path(query.sequence, query);
    expect(taken(views, i)).toEqual(wanted);
    expect(index.core.match_state(handle, query.sequence)).toBe(
      walk(real, handle, twin.match(query.sequence)),
    );
  }
}

class AppendCommand implements fc.Command<Model, Real> {
  readonly group: number;
  readonly sequence: number;
  readonly tokens: readonly number[];

  constructor(group: number, sequence: number, tokens: readonly number[]) {
    this.group = group;
    this.sequence = sequence;
    this.tokens = tokens;
  }

  check(model: Readonly<Model>): boolean {
    return model.twins[this.group] !== null;
  }

  run(model: Model, real: Real): void {
    model.twins[this.group]?.append(this.sequence, this.tokens);
    const handle = real.handles[this.group] ?? -1;
    real.index.append(handle, this.sequence, Int32Array.from([9, ...this.tokens]), 1);
  }

  toString(): string {
    return `append(${this.group}, ${this.sequence}, [${this.tokens}])`;
  }
}

/** Appends what another sequence has written, or the beginning of it: long repeats, equal sequences, prefixes. */
class CopyCommand implements fc.Command<Model, Real> {
  readonly group: number;
  readonly from: number;
  readonly to: number;
  readonly tokensMax: number;

  constructor(group: number, from: number, to: number, tokensMax: number) {
    this.group = group;
    this.from = from;
    this.to = to;
    this.tokensMax = tokensMax;
  }

  check(model: Readonly<Model>): boolean {
    const twin = model.twins[this.group];
    return twin !== null && (twin?.outputs[this.from]?.length ?? 0) > 0;
  }

  run(model: Model, real: Real): void {
    const tokens = model.twins[this.group]?.outputs[this.from]?.slice(0, this.tokensMax) ?? [];
    new AppendCommand(this.group, this.to, tokens).run(model, real);
  }

  toString(): string {
    return `copy(${this.group}, ${this.from}, ${this.to}, ${this.tokensMax})`;
  }
}

class DraftCommand implements fc.Command<Model, Real> {
  readonly group: number;
  readonly probabilityMin: number;

  constructor(group: number, probabilityMin: number) {
    this.group = group;
    this.probabilityMin = probabilityMin;
  }

  check(model: Readonly<Model>): boolean {
    return model.twins[this.group] !== null;
  }

  run(model: Model, real: Real): void {
    const twin = model.twins[this.group];
    const handle = real.handles[this.group] ?? -1;
    if (twin === null || twin === undefined) return;
    checkDrafts(real, handle, twin, this.probabilityMin);
    checkSubstrings(real, handle, twin);
  }

  toString(): string {
    return `draft(${this.group}, ${this.probabilityMin})`;
  }
}

/** Drops a group, or begins it (again) with a prompt. */
class TurnCommand implements fc.Command<Model, Real> {
  readonly group: number;
  readonly prompt: readonly number[];
  readonly contextTokens: number;

  constructor(group: number, prompt: readonly number[], contextTokens: number) {
    this.group = group;
    this.prompt = prompt;
    this.contextTokens = contextTokens;
  }

  check(): boolean {
    return true;
  }

  run(model: Model, real: Real): void {
    const handle = real.handles[this.group];
    if (handle === null || handle === undefined) {
      model.twins[this.group] = new SuffixTwin(this.prompt, this.contextTokens);
      real.handles[this.group] = real.index.create(Int32Array.from(this.prompt));
    } else {
      model.twins[this.group] = null;
      real.handles[this.group] = null;
      real.index.drop(handle);
    }
  }

  toString(): string {
    return `turn(${this.group}, [${this.prompt}])`;
  }
}

interface Shape {
  readonly alphabet: readonly number[];
  readonly contextTokens?: number;
  readonly sequences?: number;
  /** Tokens of one append, at most. */
  readonly tokensMax?: number;
  readonly commandsMax?: number;
}

function programs(shape: Shape) {
  const { contextTokens = 64, sequences = 7, tokensMax = 12, commandsMax = 40 } = shape;
  const token = fc.constantFrom(...shape.alphabet);
  const tokens = fc.array(token, { minLength: 1, maxLength: tokensMax, size: "max" });
  const prompt = fc.array(token, { maxLength: 8, size: "max" });
  const group = fc.nat(1);
  const sequence = fc.nat(sequences - 1);
  const append = fc
    .tuple(group, sequence, tokens)
    .map(([g, to, list]) => new AppendCommand(g, to, list));
  const copy = fc
    .tuple(group, sequence, sequence, fc.constantFrom(5, 20, 50))
    .map(([g, from, to, max]) => new CopyCommand(g, from, to, max));
  const draft = fc
    .tuple(group, fc.constantFrom(0, 0.02, 0.1, 0.3, 0.9))
    .map(([g, p]) => new DraftCommand(g, p));
  const turn = fc.tuple(group, prompt).map(([g, list]) => new TurnCommand(g, list, contextTokens));
  const kinds = [append, append, append, copy, copy, draft, turn];
  return fc.commands(kinds, { maxCommands: commandsMax, size: "max" });
}

const begin = (index: SuffixIndex, contextTokens: number) => {
  const real: Real = { index, handles: [null, null] };
  const model: Model = { twins: [null, null] };
  for (const g of [0, 1]) new TurnCommand(g, [5, 5, 6], contextTokens).run(model, real);
  return { model, real };
};

const end = (real: Real) => {
  for (const handle of real.handles) if (handle !== null) real.index.drop(handle);
};

function holds(shape: Shape, numRuns: number): void {
  const contextTokens = shape.contextTokens ?? 64;
  const index = new SuffixIndex({ contextTokens, learning: false }, unexpectedFull);
  fc.assert(
    fc.property(programs(shape), (program) => {
      const { model, real } = begin(index, contextTokens);
      fc.modelRun(() => ({ model, real }), program);
      end(real);
    }),
    { numRuns },
  );
}

/** One fixed program, checked at its end. */
function follows(outputs: readonly (readonly number[])[], contextTokens = 64): void {
  const index = new SuffixIndex({ contextTokens, learning: false }, unexpectedFull);
  const { model, real } = begin(index, contextTokens);
  for (const [k, tokens] of outputs.entries()) new AppendCommand(0, k, tokens).run(model, real);
  for (const p of [0, 0.1]) new DraftCommand(0, p).run(model, real);
  end(real);
}

const upTo = (n: number) => Array.from({ length: n }, (_, i) => i);

test("index: one token only", () => holds({ alphabet: [7] }, 200));
test("index: two tokens", () => holds({ alphabet: [0, 1] }, 300));
test("index: four tokens, the smallest and the largest id among them", () =>
  holds({ alphabet: [0, 1, 2, LARGEST] }, 300));
test("index: contexts bounded to four tokens", () =>
  holds({ alphabet: [0, 1], contextTokens: 4 }, 300));
test("index: few sequences, longer than the bound of one token and a draft", () =>
  holds({ alphabet: [3, 4], contextTokens: 1, sequences: 2, tokensMax: 40, commandsMax: 16 }, 200));
test("index: many tokens", () =>
  holds({ alphabet: upTo(150), sequences: 2, tokensMax: 90, commandsMax: 14 }, 40));

test("index: contexts with 40 and with 100 continuations", () => {
  follows([
    upTo(40).flatMap((i) => [200, 300 + i]),
    [200],
    upTo(100).flatMap((i) => [201, 300 + i]),
    [201],
    upTo(4).flatMap(() => [201, 310]),
  ]);
});

test("index: a split moves the best of many edges", () => {
  follows([
    [...upTo(12), ...upTo(6).flatMap(() => [59, 51])],
    [60, 51],
  ]);
});

test("index: a sequence that repeats one token, and one that leaves the loop", () => {
  follows([upTo(90).fill(8), [...upTo(70).fill(8), 9, 8, 8], [8]], 4);
  const left = [...upTo(40).fill(8), 9];
  follows([left, left, left, upTo(41).fill(8)], 1);
});
