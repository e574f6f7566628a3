import { describe, expect, test } from "bun:test";
import { groupId } from "../../core/base/ids.ts";
import { Replica } from "../../core/draft/replica.ts";
import { type CellOptions, runCell } from "./cell.ts";
import { HeadDrafts, type HeadOptions } from "./head.ts";
import type { TraceGroup } from "./recordings.ts";

const OPTIONS = { file: "f", drafter: "grouped", probabilityMin: 0.01, live: 4 } as const;

/** Tokens that say nothing of one another. */
function novelGroups(count: number, length: number): TraceGroup[] {
  let next = 0;
  const response = () => Int32Array.from({ length }, () => (next += 1));
  const groupOf = (_: unknown, i: number) => ({
    name: `g${i}`,
    prompt: Int32Array.of(1),
    responses: [response(), response()],
  });
  return Array.from({ length: count }, groupOf);
}

async function cell(groups: readonly TraceGroup[], budget: number, head: HeadOptions) {
  const options: CellOptions = { ...OPTIONS, budget, head };
  const stream = async function* () {
    yield* groups;
  };
  return await runCell(stream(), options);
}

describe("the head alone", () => {
  test("head: each place has its acceptance where all before it were right, and all places are drafted", async () => {
    const head: HeadOptions = { system: "head", acceptance: [0.7, 0.6, 0.5] };
    const result = await cell(novelGroups(20, 1000), 7, head);
    // 1 + 0.7 + 0.42 + 0.21.
    expect(Math.abs(result.accepted_plus_1 - 2.33)).toBeLessThan(0.03);
    expect(result.drafted_per_step).toBe(3);
    expect(result.head).toEqual(head);
  });

  test("head: what is right is drawn by position, so that a run does not depend on K", async () => {
    const groups = novelGroups(2, 400);
    const one = await cell(groups, 1, { system: "head", acceptance: [0.5] });
    const more = await cell(groups, 7, { system: "head", acceptance: [0.5] });
    expect(more.steps).toBe(one.steps);
  });

  test("head: siblings that have nothing in common bring nothing", async () => {
    const groups = novelGroups(4, 300);
    const acceptance = [0.7, 0.6, 0.5];
    const alone = await cell(groups, 7, { system: "head", acceptance });
    const both = await cell(groups, 7, { system: "both", acceptance });
    const table = await cell(groups, 7, { system: "table", acceptance });
    expect([both.steps, table.accepted_plus_1]).toEqual([alone.steps, 1]);
  });
});

/** Drafts of a response that has its first `at` tokens; a sibling has ended, whose text is `told`. */
function drafted(told: number[], response: number[], at: number, head: HeadOptions, tokensMax = 7) {
  const drafter = new Replica({ learning: false });
  const id = groupId("0");
  const prompt = Int32Array.of(90, 91, 92);
  drafter.register(id, prompt);
  const live = [told, response].map((tokens, sampleIndex) => ({
    query: { groupId: id, sampleIndex, tokensMax, probabilityMin: 0.01, tree: false } as const,
    prompt,
    response: Int32Array.from(tokens),
    tally: { responses: 2, tokens: 0, steps: 0, drafted: 0, accepted: 0, returns: false },
    at: sampleIndex === 0 ? tokens.length : at,
  }));
  for (const { query, response: tokens, at: end } of live) {
    drafter.update(id, query.sampleIndex, 0, tokens.subarray(0, end));
  }
  const { start, tokens } = new HeadDrafts(drafter, head).propose(live);
  return [...tokens.subarray(start[1], start[2])];
}

describe("beside siblings", () => {
  const told = [1, 2, 3, 4, 5, 6, 7, 8];
  const certain = (places: number, system: HeadOptions["system"] = "both"): HeadOptions => ({
    system,
    acceptance: Array.from({ length: places }, () => 1),
  });

  test("head: the draft goes on from the tree where the head has ended", () => {
    expect(drafted(told, [...told], 2, certain(2, "head"))).toEqual([3, 4]);
    expect(drafted(told, [...told], 2, certain(2))).toEqual([3, 4, 5, 6, 7, 8]);
    expect(drafted(told, [...told], 2, certain(2), 4)).toEqual([3, 4, 5, 6]);
  });

  test("head: behind tokens that no tree has it goes on with what followed the same ones", () => {
    const response = [1, 2, 30, 4, 5, 6, 7, 8];
    expect(drafted(told, response, 2, certain(2, "table"), 3)).toEqual([3, 4, 5]);
    expect(drafted(told, response, 2, certain(1), 4)).toEqual([30]);
    expect(drafted(told, response, 2, certain(2), 4)).toEqual([30, 4, 5, 6]);
  });

  test("head: the tree's token is taken where its estimate is higher, and the head's next is then of no use", () => {
    const response = [1, 2, 30, 31, 32];
    const unsure: HeadOptions = { system: "both", acceptance: [0.1, 1, 1] };
    expect(drafted(told, response, 2, unsure).slice(0, 3)).toEqual([3, 4, 5]);
    // Where both say the same the head goes on.
    expect(drafted(told, [1, 2, 3, 31, 32], 2, certain(3)).slice(0, 3)).toEqual([3, 31, 32]);
  });
});
