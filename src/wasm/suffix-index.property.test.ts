// The group index against its brute-force twin: counts, best edges, match states and drafts after every
// change, over random programs of interleaved appends, with small alphabets so that everything repeats.

import { expect, test } from "bun:test";
import fc from "fast-check";
import { SuffixTwin, type TwinDraft } from "../../test/reference/suffix-twin.ts";
import { type DraftViews, SuffixIndex } from "./suffix-index.ts";

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

function taken(views: DraftViews, ask: number): TwinDraft {
  const [from, to] = [views.start[ask] ?? 0, views.start[ask + 1] ?? 0];
  return {
    tokens: [...views.tokens.subarray(from, to)],
    parents: [...views.parents.subarray(from, to)],
    probabilities: [...views.probabilities.subarray(from, to)],
  };
}

function checkDrafts(real: Real, handle: number, twin: SuffixTwin, probabilityMin: number): void {
  const { index } = real;
  const sequences = twin.outputs.length + 1;
  const asks = Array.from({ length: 2 * sequences }, (_, i) => ({
    sequence: i >> 1,
    tree: i % 2 === 1,
    tokensMax: 1 + ((i * 7) % 32),
    probabilityMin,
  }));
  index.begin(asks.length);
  for (const ask of asks) index.draft(handle, ask.sequence, ask);
  const views = index.step();
  for (const [i, ask] of asks.entries()) {
    const wanted = ask.tree ? twin.tree(ask.sequence, ask) : twin.path(ask.sequence, ask);
    expect(taken(views, i)).toEqual(wanted);
    expect(index.core.match_state(handle, ask.sequence)).toBe(
      walk(real, handle, twin.match(ask.sequence)),
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

function programs(alphabet: readonly number[], contextTokens: number) {
  const token = fc.constantFrom(...alphabet);
  const tokens = fc.array(token, { minLength: 1, maxLength: 12, size: "max" });
  const prompt = fc.array(token, { maxLength: 8, size: "max" });
  const group = fc.nat(1);
  const append = fc
    .tuple(group, fc.nat(6), tokens)
    .map(([g, sequence, list]) => new AppendCommand(g, sequence, list));
  const draft = fc
    .tuple(group, fc.constantFrom(0, 0.02, 0.1, 0.3, 0.9))
    .map(([g, p]) => new DraftCommand(g, p));
  const turn = fc.tuple(group, prompt).map(([g, list]) => new TurnCommand(g, list, contextTokens));
  return fc.commands([append, append, append, append, draft, turn], {
    maxCommands: 40,
    size: "max",
  });
}

function holds(alphabet: readonly number[], contextTokens: number, numRuns: number): void {
  const options = { contextTokens, learning: false };
  const index = new SuffixIndex(options, unexpectedFull);
  fc.assert(
    fc.property(programs(alphabet, contextTokens), (program) => {
      const real: Real = { index, handles: [null, null] };
      const begin = () => {
        const model: Model = { twins: [null, null] };
        for (const g of [0, 1]) new TurnCommand(g, [5, 5, 6], contextTokens).run(model, real);
        return { model, real };
      };
      fc.modelRun(begin, program);
      for (const handle of real.handles) if (handle !== null) index.drop(handle);
    }),
    { numRuns },
  );
}

test("index: one token only", () => holds([7], 64, 400));
test("index: two tokens", () => holds([0, 1], 64, 800));
test("index: four tokens, the smallest and the largest id among them", () =>
  holds([0, 1, 2, LARGEST], 64, 800));
test("index: many tokens", () =>
  holds(
    Array.from({ length: 60 }, (_, i) => i * 977),
    64,
    60,
  ));
test("index: contexts bounded to four tokens", () => holds([0, 1], 4, 800));
test("index: contexts bounded to one token", () => holds([3, 4, 5], 1, 600));
