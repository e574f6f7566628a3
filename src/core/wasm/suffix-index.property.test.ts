// The group index against its brute-force twin: counts, best edges, match states and drafts after every
// change, over random programs of interleaved appends, with small alphabets so that everything repeats.

import { expect, test } from "bun:test";
import fc from "fast-check";
import { draftIn, SuffixTwin, unexpectedFull } from "../../../test/reference/suffix-twin.ts";
import { kind, weighted } from "../../../test/suite/arbitraries.ts";
import { TABLE_NODES } from "./abi.ts";
import { SuffixIndex } from "./suffix-index.ts";

/** Groups on both sides; null: dropped. */
interface World {
  readonly index: SuffixIndex;
  readonly contextTokens: number;
  readonly groups: ({ readonly twin: SuffixTwin; readonly handle: number } | null)[];
}

const LARGEST = 0x7fffffff;

function walk({ index }: World, handle: number, text: readonly number[]): number {
  let state = index.core.root_state(handle);
  for (const token of text) if (state !== 0) state = index.core.state_edge(state, token);
  return state;
}

/** Every substring: reachable, counted right, and its best continuation known. */
function checkSubstrings(world: World, handle: number, twin: SuffixTwin): void {
  const { core } = world.index;
  expect(core.group_check(handle)).toBe(0);
  for (const text of twin.substrings()) {
    const state = walk(world, handle, text);
    if (state === 0) throw new Error(`${text} is not reachable`);
    if (text.length === 0 || text.length > twin.contextTokens + 31) continue;
    expect([text, core.state_count(state)]).toEqual([text, twin.count(text)]);
    expect([text, core.state_best(state)]).toEqual([text, twin.best(text) ?? -1]);
  }
}

function checkDrafts(world: World, handle: number, twin: SuffixTwin, probabilityMin: number): void {
  const { index } = world;
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
    expect(draftIn(views, i)).toEqual(wanted);
    expect(index.core.match_state(handle, query.sequence)).toBe(
      walk(world, handle, twin.match(query.sequence)),
    );
  }
}

/** A table is the likeliest path, then branches: a tree whose parents come first, of tokens that the group has. */
function checkTables(world: World, handle: number, twin: SuffixTwin): void {
  const { index } = world;
  const known = new Set([twin.prompt, ...twin.outputs].flat());
  for (let sequence = 0; sequence <= twin.outputs.length; sequence += 1) {
    const tokensMax = 1 + ((sequence * 5) % 32);
    index.begin(1);
    index.draft(handle, sequence, { tokensMax, probabilityMin: 0, tree: "table" });
    const { tokens, parents, probabilities } = draftIn(index.step(), 0);
    expect(tokens.length).toBeLessThanOrEqual(TABLE_NODES);
    const [first] = twin.path(sequence, { tokensMax: 1, probabilityMin: 0 }).tokens;
    if (first !== undefined) expect(tokens[0]).toBe(first);
    const places = tokens.map((token, i) => `${parents[i]}: ${token}`);
    expect(new Set(places).size).toBe(places.length);
    const depths = new Map([[-1, 0]]);
    for (const [i, token] of tokens.entries()) {
      const parent = parents[i] ?? Number.NaN;
      depths.set(i, (depths.get(parent) ?? Number.NaN) + 1);
      expect(known).toContain(token);
      expect(probabilities[i]).toBeLessThanOrEqual((probabilities[parent] ?? 1) * 1.001);
    }
    const path = tokens.findIndex((_, i) => parents[i] !== i - 1);
    expect(path < 0 ? tokens.length : path).toBeLessThanOrEqual(tokensMax);
    expect(Math.max(...depths.values())).toBeLessThanOrEqual(tokensMax + 13);
  }
}

type Op =
  | { kind: "append"; group: number; sequence: number; tokens: readonly number[] }
  /** Appends what another sequence has written, or its beginning: long repeats, equal sequences, prefixes. */
  | { kind: "copy"; group: number; sequence: number; from: number; tokensMax: number }
  | { kind: "draft"; group: number; probabilityMin: number }
  /** Drops a group, or begins it (again) with a prompt. */
  | { kind: "turn"; group: number; prompt: readonly number[] };

function act(op: Op, world: World): void {
  const { index, groups, contextTokens } = world;
  const group = groups[op.group] ?? null;
  if (op.kind === "turn") {
    const { prompt } = op;
    if (group !== null) index.drop(group.handle);
    const begin = () => ({
      twin: new SuffixTwin(prompt, contextTokens),
      handle: index.create(Int32Array.from(prompt)) ?? unexpectedFull(),
    });
    groups[op.group] = group === null ? begin() : null;
    return;
  }
  if (group === null) return;
  const { twin, handle } = group;
  if (op.kind === "draft") {
    checkDrafts(world, handle, twin, op.probabilityMin);
    checkTables(world, handle, twin);
    checkSubstrings(world, handle, twin);
    return;
  }
  const tokens =
    op.kind === "copy" ? (twin.outputs[op.from]?.slice(0, op.tokensMax) ?? []) : op.tokens;
  if (tokens.length === 0) return;
  twin.append(op.sequence, tokens);
  index.append(handle, op.sequence, Int32Array.from([9, ...tokens]), 1);
}

interface Shape {
  readonly alphabet: readonly number[];
  readonly contextTokens?: number;
  readonly sequences?: number;
  /** Tokens of one append, at most. */
  readonly tokensMax?: number;
  readonly opsMax?: number;
}

function programs(shape: Shape): fc.Arbitrary<Op[]> {
  const { sequences = 7, tokensMax = 12, opsMax = 40 } = shape;
  const token = fc.constantFrom(...shape.alphabet);
  const tokens = fc.array(token, { minLength: 1, maxLength: tokensMax, size: "max" });
  const prompt = fc.array(token, { maxLength: 8, size: "max" });
  const group = fc.nat(1);
  const sequence = fc.nat(sequences - 1);
  const max = fc.constantFrom(5, 20, 50);
  const probabilityMin = fc.constantFrom(0, 0.02, 0.1, 0.3, 0.9);
  const op: fc.Arbitrary<Op> = fc.oneof(
    weighted(3, { kind: kind("append"), group, sequence, tokens }),
    weighted(2, { kind: kind("copy"), group, sequence, from: sequence, tokensMax: max }),
    weighted(1, { kind: kind("draft"), group, probabilityMin }),
    weighted(1, { kind: kind("turn"), group, prompt }),
  );
  return fc.array(op, { maxLength: opsMax, size: "max" });
}

/** Carries out a program on two groups, and drops them. */
function play(index: SuffixIndex, contextTokens: number, program: readonly Op[]): void {
  const world: World = { index, contextTokens, groups: [null, null] };
  for (const group of [0, 1]) act({ kind: "turn", group, prompt: [5, 5, 6] }, world);
  for (const op of program) act(op, world);
  for (const group of world.groups) if (group !== null) index.drop(group.handle);
}

function holds(shape: Shape, numRuns: number): void {
  const { contextTokens = 64 } = shape;
  const index = new SuffixIndex({ contextTokens, learning: false }, unexpectedFull);
  const property = fc.property(programs(shape), (program) => play(index, contextTokens, program));
  fc.assert(property, { numRuns });
}

/** One fixed program, checked at its end. */
function follows(outputs: readonly (readonly number[])[], contextTokens = 64): void {
  const index = new SuffixIndex({ contextTokens, learning: false }, unexpectedFull);
  const written = outputs.map(
    (tokens, sequence): Op => ({ kind: "append", group: 0, sequence, tokens }),
  );
  const checks = [0, 0.1].map((p): Op => ({ kind: "draft", group: 0, probabilityMin: p }));
  play(index, contextTokens, [...written, ...checks]);
}

const upTo = (n: number) => Array.from({ length: n }, (_, i) => i);

test("index: one token only", () => holds({ alphabet: [7] }, 200));
test("index: two tokens", () => holds({ alphabet: [0, 1] }, 300));
test("index: four tokens, the smallest and the largest id among them", () =>
  holds({ alphabet: [0, 1, 2, LARGEST] }, 300));
test("index: contexts bounded to four tokens", () =>
  holds({ alphabet: [0, 1], contextTokens: 4 }, 300));
test("index: few sequences, longer than the bound of one token and a draft", () =>
  holds({ alphabet: [3, 4], contextTokens: 1, sequences: 2, tokensMax: 40, opsMax: 16 }, 200));
test("index: many tokens", () =>
  holds({ alphabet: upTo(150), sequences: 2, tokensMax: 90, opsMax: 14 }, 40));

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
