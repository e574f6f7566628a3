// What the core refuses at its entry, and what its host refuses before that: calls within a call, and after one that gave
// up. Each wrong call goes to a core of its own, which is of no use after it.

import { expect, test } from "bun:test";
import { unexpectedFull } from "../../../test/reference/suffix-twin.ts";
import { AssertionError } from "../base/assert.ts";
import { Heap } from "./heap.ts";
import { type CoreExports, loadCore } from "./load.ts";
import { SuffixIndex } from "./suffix-index.ts";

const WORDS = 64;

interface Bare {
  readonly core: CoreExports;
  readonly input: number;
  readonly words: Int32Array;
  readonly group: number;
}

/** A core with room for a few records and for two drafts, and a group that has begun. */
function bare(): Bare {
  const core = loadCore();
  const input = core.input_reserve(WORDS) >>> 0;
  core.output_reserve(2);
  const group = core.group_create();
  const words = new Int32Array(core.memory.buffer, input, WORDS);
  words.set([group, 0, 3, 5, 6, 7]);
  expect(core.step(1, 0, 0)).toBe(0);
  return { core, input, words, group };
}

const REFUSED: Record<string, (bare: Bare) => unknown> = {
  "a prompt outside of memory": ({ core }) => core.group_prompt(core.group_create(), -16, 4),
  "a prompt that reaches beyond memory": ({ core, input }) =>
    core.group_prompt(core.group_create(), input, 0x7fffffff),
  "a prompt in the core's static data": ({ core }) =>
    core.group_prompt(core.group_create(), 1024, 4),
  "a prompt between two words": ({ core, input }) =>
    core.group_prompt(core.group_create(), input + 2, 1),
  "a response of an earlier epoch outside of memory": ({ core }) =>
    core.group_history(core.group_create(), -16, 4, 0),
  "figures written outside of memory": ({ core, group }) => core.group_figures(group, 8),
  "an append record of more tokens than the input area has": ({ core, words, group }) => {
    words.set([group, 0, WORDS, 5]);
    return core.step(1, 0, 0);
  },
  "an append record of a count below zero": ({ core, words, group }) => {
    words.set([group, 0, -1, 5]);
    return core.step(1, 0, 0);
  },
  "more append records than the input area has": ({ core, words }) => {
    words.fill(0);
    return core.step(WORDS, 0, 0);
  },
  "draft records beyond the input area": ({ core, words, group }) => {
    words.set([group, 0, WORDS - 6]);
    return core.step(1, 1, 0);
  },
  "a count of records below zero": ({ core }) => core.step(-1, 0, 0),
  "a least probability that is no number": ({ core, words, group }) => {
    words.set([group, 0, 4, 0, 0x7fc00000, 0]);
    return core.step(0, 1, 10);
  },
  "an input area of a size below zero": ({ core }) => core.input_reserve(-1),
  "an output area of a size below zero": ({ core }) => core.output_reserve(-1),
  "contexts of no token": ({ core }) => core.configure(1 << 24, 0, 1),
  "a heap that is none": ({ core }) => core.heap_push(0, 1, 1),
  "a heap's handle whose high bits are wrong": ({ core }) =>
    core.heap_push(core.heap_create() | (1 << 28), 1, 1),
  "a heap that was dropped": ({ core }) => {
    const heap = core.heap_create();
    core.heap_drop(heap);
    return core.heap_count(heap);
  },
  "a heap's key that is no number": ({ core }) => core.heap_push(core.heap_create(), 1, Number.NaN),
  "a state that is none": ({ core }) => core.state_count(0),
  "the root of a group that is none": ({ core }) => core.root_state(77),
};

for (const [what, call] of Object.entries(REFUSED)) {
  test(`core: gives up at ${what}`, () => {
    const one = bare();
    expect(() => call(one)).toThrow("core.wasm gave up at");
  });
}

test("core: an invalid handle, or one with wrong high bits, returns a status", () => {
  const { core, input, group } = bare();
  for (const handle of [0, -1, 77, group | (1 << 24), group | (1 << 31)]) {
    expect(core.group_prompt(handle, input, 1)).toBe(-2);
    expect(core.group_drop(handle)).toBe(-2);
    expect(core.group_figures(handle, input)).toBe(-2);
  }
  expect(core.group_figures(group, input)).toBe(0);
});

test("core: areas that no memory could hold are refused without a trap", () => {
  const { core } = bare();
  expect(core.input_reserve(0x7fffffff)).toBe(0);
  expect(core.output_reserve(0x7fffffff)).toBe(0);
});

test("host: no call is let into a core in which another has given up", () => {
  const index = new SuffixIndex({}, unexpectedFull);
  const handle = index.create(Int32Array.of(1)) ?? unexpectedFull();
  const heap = new Heap(index.core);
  index.begin(1);
  index.draft(handle, 0, { tokensMax: 4, probabilityMin: Number.NaN, tree: false });
  expect(() => index.step()).toThrow("core.wasm gave up at");
  const refused = "refused, since the core is in step or gave up in it";
  expect(() => index.step()).toThrow(refused);
  expect(() => index.create(Int32Array.of(1))).toThrow(refused);
  expect(() => index.drop(handle)).toThrow(refused);
  expect(() => heap.push(1, 1)).toThrow(refused);
  expect(() => new Heap(index.core)).toThrow(refused);
  // Other instances share nothing with it.
  expect(new SuffixIndex({}, unexpectedFull).create(Int32Array.of(1))).not.toBeNull();
});

/** An index whose first group runs out of room in a step that also drafts for another; `onFull` does what is asked. */
function fullInStep(onFull: (index: SuffixIndex, handle: number) => void): number[] {
  let index: SuffixIndex | null = null;
  const options = { limitBytes: 1_100_000, learning: false };
  index = new SuffixIndex(options, (handle) => index !== null && onFull(index, handle));
  const small = index.create(Int32Array.of(1, 2, 3, 1, 2)) ?? unexpectedFull();
  const large = index.create(Int32Array.of(1)) ?? unexpectedFull();
  index.append(small, 0, Int32Array.of(3, 1, 2), 0);
  index.append(
    large,
    0,
    Int32Array.from({ length: 40_000 }, (_, i) => i % 997),
    0,
  );
  index.begin(1);
  index.draft(small, 0, { tokensMax: 3, probabilityMin: 0.05, tree: false });
  const { start, tokens } = index.step();
  return [...tokens.subarray(0, start[1])];
}

test("host: a group that is full may be dropped while it is reported, and the step's drafts stay", () => {
  const drafted = fullInStep((index, handle) => index.drop(handle));
  expect(drafted).toEqual([3, 1, 2]);
});

test("host: no step is made while a full group is reported", () => {
  expect(() => fullInStep((index) => index.step())).toThrow(AssertionError);
  expect(() => fullInStep((index) => index.begin(10_000))).toThrow(AssertionError);
});
