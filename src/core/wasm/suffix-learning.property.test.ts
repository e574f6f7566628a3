// A core that learns against its slow twin: responses of a few groups grow step by step, their drafts are accepted as far
// as they are right, and every draft must be the twin's, probabilities included, to the last bit.

import { expect, test } from "bun:test";
import fc from "fast-check";
import { LearningTwin } from "../../../test/reference/learning-twin.ts";
import type { TwinDraft } from "../../../test/reference/suffix-twin.ts";
import { SuffixIndex } from "./suffix-index.ts";

function unexpectedFull(): never {
  throw new Error("a group is full");
}

interface Row {
  readonly group: number;
  readonly sequence: number;
  readonly text: readonly number[];
  readonly tree: boolean;
  at: number;
  draft: TwinDraft;
}

interface Program {
  /** A response of an earlier epoch, in the first group. */
  readonly past: readonly number[];
  /** The turn before which it arrives. */
  readonly pastAt: number;
  readonly prompts: readonly (readonly number[])[];
  readonly texts: readonly (readonly number[])[];
  /** Which row of those that still run moves in each turn, and how it asks for its next draft. */
  readonly turns: readonly {
    readonly pause: number;
    readonly tokensMax: number;
    readonly p: number;
  }[];
}

const NOTHING: TwinDraft = { tokens: [], parents: [], probabilities: [] };

/** How many tokens of the draft the text goes on with. */
function accepted(draft: TwinDraft, text: readonly number[], at: number): number {
  let parent = -1;
  for (let count = 0; ; count += 1) {
    const token = text[at + count];
    const next = draft.tokens.findIndex((one, i) => one === token && draft.parents[i] === parent);
    if (next < 0) return count;
    parent = next;
  }
}

/** Runs the program on both; returns how many tokens were drafted and accepted. */
function run(
  program: Program,
  isTree: (row: number) => boolean,
): { drafted: number; right: number } {
  const index = new SuffixIndex({}, unexpectedFull);
  const twin = new LearningTwin();
  const handles = program.prompts.map((prompt) => {
    twin.create(prompt);
    return index.create(Int32Array.from(prompt)) ?? unexpectedFull();
  });
  const rows = program.texts.map((text, i): Row => {
    const group = i % handles.length;
    const sequence = Math.floor(i / handles.length);
    return { group, sequence, text, tree: isTree(i), at: 0, draft: NOTHING };
  });
  const sum = { drafted: 0, right: 0 };
  for (const [at, turn] of program.turns.entries()) {
    if (at === program.pastAt) {
      twin.past(0, program.past);
      index.past(handles[0] ?? 0, Int32Array.from(program.past));
    }
    const running = rows.filter((row, i) => row.at < row.text.length && i % 5 !== turn.pause);
    for (const row of running) {
      const right = accepted(row.draft, row.text, row.at);
      sum.right += right;
      const tokens = row.text.slice(row.at, row.at + right + 1);
      index.append(handles[row.group] ?? 0, row.sequence, Int32Array.from(tokens), 0);
      twin.append(row.group, row.sequence, tokens);
      row.at += tokens.length;
    }
    const queries = running.map((row) => {
      const { group, sequence, tree } = row;
      return { group, sequence, tree, tokensMax: turn.tokensMax, probabilityMin: turn.p };
    });
    index.begin(queries.length);
    for (const query of queries) index.draft(handles[query.group] ?? 0, query.sequence, query);
    const { start, tokens, parents, probabilities } = index.step();
    const wanted = queries.length === 0 ? [] : twin.drafts(queries);
    for (const [i, row] of running.entries()) {
      const [from, to] = [start[i] ?? 0, start[i + 1] ?? 0];
      row.draft = {
        tokens: [...tokens.subarray(from, to)],
        parents: [...parents.subarray(from, to)],
        probabilities: [...probabilities.subarray(from, to)],
      };
      expect(row.draft).toEqual(wanted[i] ?? NOTHING);
      sum.drafted += row.draft.tokens.length;
    }
  }
  return sum;
}

/** Texts are a story with some tokens replaced, so that siblings part and meet again; and a second story now and then. */
function programs(vocabulary: number): fc.Arbitrary<Program> {
  const token = fc.nat(vocabulary - 1).map((id) => id + 3);
  const story = fc.array(token, { minLength: 24, maxLength: 40, size: "max" });
  const changes = fc.array(fc.tuple(fc.nat(39), token), { maxLength: 5 });
  const variant = fc.tuple(fc.nat(7), fc.boolean(), changes);
  const turn = fc.record({
    pause: fc.nat(7),
    tokensMax: fc.integer({ min: 1, max: 12 }),
    p: fc.constantFrom(0.01, 0.05, 0.1, 0.3),
  });
  return fc.record({
    past: fc.array(token, { maxLength: 12 }),
    pastAt: fc.nat(6),
    prompts: fc.array(fc.array(token, { minLength: 1, maxLength: 5 }), {
      minLength: 1,
      maxLength: 2,
    }),
    texts: fc
      .tuple(story, story, fc.array(variant, { minLength: 2, maxLength: 7, size: "max" }))
      .map(([one, other, variants]) =>
        variants.map(([skip, isOther, replaced]) => {
          const text = (isOther ? other : one).slice(skip);
          for (const [at, by] of replaced) if (at < text.length) text[at] = by;
          return text;
        }),
      ),
    turns: fc.array(turn, { minLength: 20, maxLength: 40, size: "max" }),
  });
}

function holds(vocabulary: number, isTree: (row: number) => boolean, numRuns: number): void {
  const sum = { drafted: 0, right: 0 };
  fc.assert(
    fc.property(programs(vocabulary), (program) => {
      const { drafted, right } = run(program, isTree);
      sum.drafted += drafted;
      sum.right += right;
    }),
    { numRuns, endOnFailure: true },
  );
  // The programs are of no use if nothing is drafted and nothing accepted.
  expect(sum.drafted).toBeGreaterThan(numRuns * 20);
  expect(sum.right).toBeGreaterThan(numRuns * 5);
}

test("learning: paths are the twin's", () => holds(6, () => false, 20));
test("learning: paths over more tokens are the twin's", () => holds(60, () => false, 20));
// With more than eight tokens the order of a state's edges, in which a tree adds its odds, would be that of a hash table.
test("learning: trees are the twin's", () => holds(6, () => true, 20));
test("learning: paths and trees in one instance are the twin's", () =>
  holds(7, (row) => row % 2 === 0, 20));
