// Responses of earlier epochs in the group index: until anything is learned they count like finished
// siblings, so the brute-force twin holds them as its first sequences. And when they are refused.

import { expect, test } from "bun:test";
import fc from "fast-check";
import { SuffixTwin } from "../../test/reference/suffix-twin.ts";
import { STATUS_INVALID, STATUS_OK } from "./abi.ts";
import { SuffixIndex } from "./suffix-index.ts";

const token = fc.constantFrom(0, 1, 2);
const text = fc.array(token, { minLength: 1, maxLength: 20, size: "max" });

function unexpectedFull(): never {
  throw new Error("a group is full");
}

test("index: drafts with a past are those of a group whose first responses it is", () => {
  const index = new SuffixIndex({ learning: false }, unexpectedFull);
  const past = fc.array(text, { maxLength: 4 });
  const live = fc.array(fc.tuple(fc.nat(3), text), { maxLength: 8 });
  fc.assert(
    fc.property(fc.array(token, { maxLength: 6 }), past, live, (prompt, earlier, writes) => {
      const twin = new SuffixTwin(prompt, 64);
      const handle = index.create(Int32Array.from(prompt)) ?? unexpectedFull();
      for (const [k, tokens] of earlier.entries()) {
        expect(index.past(handle, Int32Array.from(tokens))).toBe(true);
        twin.append(k, tokens);
      }
      for (const [k, tokens] of writes) {
        index.append(handle, k, Int32Array.from(tokens), 0);
        twin.append(earlier.length + k, tokens);
      }
      const queries = [0, 1, 2, 3, 4].flatMap((k) => [
        { k, tokensMax: 16, probabilityMin: 0.05, tree: false },
        { k, tokensMax: 16, probabilityMin: 0.05, tree: true },
      ]);
      index.begin(queries.length);
      for (const query of queries) index.draft(handle, query.k, query);
      const { start, tokens, parents, probabilities } = index.step();
      for (const [i, query] of queries.entries()) {
        const [from, to] = [start[i] ?? 0, start[i + 1] ?? 0];
        const sequence = earlier.length + query.k;
        const wanted = query.tree ? twin.tree(sequence, query) : twin.path(sequence, query);
        expect({
          tokens: [...tokens.subarray(from, to)],
          parents: [...parents.subarray(from, to)],
          probabilities: [...probabilities.subarray(from, to)],
        }).toEqual(wanted);
      }
      expect(index.core.group_check(handle)).toBe(0);
      expect(index.figures(handle).tokens).toBe(
        prompt.length + [...earlier, ...writes.map(([, list]) => list)].flat().length,
      );
      index.drop(handle);
    }),
    { numRuns: 300 },
  );
});

test("index: neither past nor prompt is taken after a sequence has begun, nor the prompt after the past", () => {
  const { core } = new SuffixIndex({}, unexpectedFull);
  const at = core.input_reserve(16);
  const words = new Int32Array(core.memory.buffer, at, 16);
  const handle = core.group_create();
  words.set([5, 6, 7]);
  expect(core.group_prompt(handle, at, 3)).toBe(STATUS_OK);
  expect(core.group_history(handle, at, 3)).toBe(STATUS_OK);
  expect(core.group_prompt(handle, at, 3)).toBe(STATUS_INVALID);
  expect(core.group_history(handle, at, 2)).toBe(STATUS_OK);
  words.set([handle, 0, 1, 5]);
  core.step(1, 0, 0);
  words.set([5, 6, 7]);
  expect(core.group_history(handle, at, 3)).toBe(STATUS_INVALID);
  expect(core.group_history(0, at, 3)).toBe(STATUS_INVALID);
  expect(core.group_check(handle)).toBe(0);
});
