// Responses of earlier epochs in the group index, whenever they arrive: until anything is learned they count like siblings,
// so the brute-force twin holds them as its first sequences. And when they are refused.

import { expect, test } from "bun:test";
import fc from "fast-check";
import { draftIn, SuffixTwin, unexpectedFull } from "../../../test/reference/suffix-twin.ts";
import { STATUS_INVALID, STATUS_OK } from "./abi.ts";
import { SuffixIndex } from "./suffix-index.ts";

const token = fc.constantFrom(0, 1, 2);
const text = fc.array(token, { minLength: 1, maxLength: 20, size: "max" });

interface Program {
  readonly prompt: readonly number[];
  /** Each arrives before the write of this number. */
  readonly earlier: readonly { readonly tokens: readonly number[]; readonly at: number }[];
  readonly writes: readonly (readonly [number, readonly number[]])[];
}

const programs: fc.Arbitrary<Program> = fc.record({
  prompt: fc.array(token, { maxLength: 6 }),
  earlier: fc.array(fc.record({ tokens: text, at: fc.nat(8) }), { maxLength: 4 }),
  writes: fc.array(fc.tuple(fc.nat(3), text), { maxLength: 8 }),
});

/** Runs the program on both; the index's handle. */
function load({ prompt, earlier, writes }: Program, index: SuffixIndex, twin: SuffixTwin): number {
  const handle = index.create(Int32Array.from(prompt)) ?? unexpectedFull();
  for (let at = 0; at <= 8; at += 1) {
    for (const [k, { tokens }] of earlier.entries()) {
      if (earlier[k]?.at !== at) continue;
      expect(index.past(handle, Int32Array.from(tokens))).toBe(true);
      twin.append(k, tokens);
    }
    const [k, tokens] = writes[at] ?? [0, []];
    if (tokens.length === 0) continue;
    index.append(handle, k, Int32Array.from(tokens), 0);
    twin.append(earlier.length + k, tokens);
  }
  return handle;
}

test("index: drafts with a past are those of a group with these responses, whenever the past arrives", () => {
  const index = new SuffixIndex({ learning: false }, unexpectedFull);
  fc.assert(
    fc.property(programs, (program) => {
      const { prompt, earlier } = program;
      const twin = new SuffixTwin(prompt, 64);
      const handle = load(program, index, twin);
      const queries = [0, 1, 2, 3, 4].flatMap((k) => [
        { k, tokensMax: 16, probabilityMin: 0.05, tree: false },
        { k, tokensMax: 16, probabilityMin: 0.05, tree: true },
      ]);
      index.begin(queries.length);
      for (const query of queries) index.draft(handle, query.k, query);
      const views = index.step();
      for (const [i, query] of queries.entries()) {
        const sequence = earlier.length + query.k;
        const wanted = query.tree ? twin.tree(sequence, query) : twin.path(sequence, query);
        expect(draftIn(views, i)).toEqual(wanted);
      }
      expect(index.core.group_check(handle)).toBe(0);
      index.drop(handle);
    }),
    { numRuns: 300 },
  );
});

test("index: a past in pieces is one text; a piece that does not follow the one before is refused", () => {
  const { core } = new SuffixIndex({}, unexpectedFull);
  const at = core.input_reserve(16);
  const words = new Int32Array(core.memory.buffer, at, 16);
  const handle = core.group_create();
  const other = core.group_create();
  words.set([5, 6, 7]);
  expect(core.group_history(handle, at, 3, 0)).toBe(STATUS_OK);
  expect(core.group_history(handle, at, 2, 3)).toBe(STATUS_OK);
  expect(core.group_history(handle, at, 2, 3)).toBe(STATUS_INVALID);
  expect(core.group_history(handle, at, 2, 6)).toBe(STATUS_INVALID);
  expect(core.group_history(other, at, 2, 5)).toBe(STATUS_INVALID);
  const seven = core.state_edge(core.root_state(handle), 7);
  expect(core.state_count(core.state_edge(seven, 5))).toBe(1);
  expect(core.group_history(other, at, 3, 0)).toBe(STATUS_OK);
  expect(core.group_history(handle, at, 2, 5)).toBe(STATUS_INVALID);
  core.group_drop(other);
  const again = core.group_create();
  expect(core.group_history(again, at, 3, 3)).toBe(STATUS_INVALID);
  for (const group of [handle, again]) expect(core.group_check(group)).toBe(0);
});

test("index: the past is taken after a sequence has begun, the prompt after neither", () => {
  const { core } = new SuffixIndex({}, unexpectedFull);
  const at = core.input_reserve(16);
  const words = new Int32Array(core.memory.buffer, at, 16);
  const handle = core.group_create();
  words.set([5, 6, 7]);
  expect(core.group_prompt(handle, at, 3)).toBe(STATUS_OK);
  expect(core.group_history(handle, at, 3, 0)).toBe(STATUS_OK);
  expect(core.group_prompt(handle, at, 3)).toBe(STATUS_INVALID);
  words.set([handle, 0, 1, 5]);
  core.step(1, 0, 0);
  words.set([5, 6, 7]);
  expect(core.group_history(handle, at, 3, 0)).toBe(STATUS_OK);
  expect(core.group_prompt(handle, at, 3)).toBe(STATUS_INVALID);
  expect(core.group_history(0, at, 3, 0)).toBe(STATUS_INVALID);
  expect(core.group_check(handle)).toBe(0);
});
