import { describe, expect, test } from "bun:test";
import { NaiveDrafter } from "../../../test/reference/naive-drafter.ts";
import { ManualClock } from "../../../test/suite/manual-clock.ts";
import type { GroupId } from "../../core/base/ids.ts";
import type { DraftQuery } from "../../core/draft/drafter.ts";
import { Replica } from "../../core/draft/replica.ts";
import type { TraceGroup } from "./recordings.ts";
import { type ReplayOptions, replay } from "./replay.ts";

const OPTIONS: ReplayOptions = {
  drafter: "grouped",
  mode: "concurrent",
  siblings: null,
  budget: 4,
  probabilityMin: 0.1,
  live: 2,
};

function groupOf(prompt: number[], ...responses: number[][]): TraceGroup {
  const lists = responses.map((response) => Int32Array.from(response));
  return { name: "g", prompt: Int32Array.from(prompt), responses: lists };
}

async function* streamOf(groups: readonly TraceGroup[]): AsyncGenerator<TraceGroup> {
  yield* groups;
}

async function run(groups: readonly TraceGroup[], options: Partial<ReplayOptions> = {}) {
  const drafter = new NaiveDrafter();
  const clock = { nowMs: () => 0 };
  const outcome = await replay(streamOf(groups), { ...OPTIONS, ...options }, { drafter, clock });
  return { ...outcome, drafter };
}

describe("complete", () => {
  // Step 1 has no context and drafts nothing: token 1 alone. Step 2 is after 1: the sibling says
  // 2 3 4 5, all accepted, and the bonus token 6 ends the response.
  test("replay: a complete sibling drafts its text, and a step yields one token more", async () => {
    const twins = groupOf([], [1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6]);
    const { groups } = await run([twins], { mode: "complete" });
    expect(groups).toEqual([{ responses: 2, tokens: 12, steps: 4, drafted: 8, accepted: 8 }]);
  });

  test("replay: a step at the response's end yields no token behind it", async () => {
    // After 1 the sibling says 2 3 9; the target ends with 3: two accepted, none more.
    const { groups } = await run([groupOf([], [1, 2, 3], [1, 2, 3, 9])], { mode: "complete" });
    const target = await run([groupOf([], [1, 2, 3])], { mode: "complete" });
    expect(groups[0]?.tokens).toBe(7);
    // The target: 1 | 2 3. Its sibling, 1 | 2 3 | 9: after the accepted 2 3 comes 9 as the bonus token.
    expect(groups[0]?.steps).toBe(4);
    expect(groups[0]?.accepted).toBe(4);
    expect(groups[0]?.drafted).toBe(3 + 2);
    expect(target.groups[0]).toMatchObject({ steps: 3, drafted: 0 });
  });

  test("replay: the time of loading siblings is not the drafter's", async () => {
    const clock = new ManualClock();
    const drafter = new Loaded(clock);
    const groups = streamOf([groupOf([9], [1, 2], [3, 4, 5])]);
    const options: ReplayOptions = { ...OPTIONS, mode: "complete", live: 1 };
    const outcome = await replay(groups, options, { drafter, clock });
    // Each update takes a millisecond: 5 steps of one token are updates, 2 siblings are loaded.
    expect(drafter.updates).toBe(7);
    expect(outcome.drafterMs).toBe(5);
  });
});

describe("concurrent", () => {
  test("replay: a response sees what its siblings had when the round began, and nothing of the round", async () => {
    // Round 1: nothing has been said. Round 2: after 1, the sibling has not gone on either. Round 3: after 2
    // the sibling has not gone on. So twins in lock step never help one another.
    const { groups } = await run([groupOf([], [1, 2, 3, 4], [1, 2, 3, 4])]);
    expect(groups[0]).toMatchObject({ steps: 8, drafted: 0, accepted: 0 });
  });

  test("replay: no more groups are live than asked for, and the next starts when one has ended", async () => {
    const groups = [groupOf([], [1], [1]), groupOf([], [1, 2], [1]), groupOf([], [1], [1])];
    const two = await run(groups);
    expect(two.drafter.queriesMost).toBe(4);
    expect(two.drafter.dropped.map(String)).toEqual(["0", "1", "2"]);
    expect((await run(groups, { live: 1 })).drafter.queriesMost).toBe(2);
    expect((await run(groups, { live: 9 })).drafter.queriesMost).toBe(6);
  });

  test("replay: self drafts from the prompt and the response's own text alone", async () => {
    const group = groupOf([1, 2, 3, 4, 1], [2, 3, 4], [7, 7, 7, 7]);
    const both = await run([group], { drafter: "self" });
    const first = await run([groupOf([1, 2, 3, 4, 1], [2, 3, 4])], { drafter: "self" });
    const second = await run([groupOf([1, 2, 3, 4, 1], [7, 7, 7, 7])], { drafter: "self" });
    expect(first.groups[0]).toMatchObject({ steps: 1, accepted: 3 });
    expect(both.groups[0]?.accepted).toBe(3 + (second.groups[0]?.accepted ?? 0));
    expect(both.groups[0]?.drafted).toBe(
      (first.groups[0]?.drafted ?? 0) + (second.groups[0]?.drafted ?? 0),
    );
  });
});

describe("on the core", () => {
  const text = Array.from({ length: 200 }, (_, i) => (i * i * 7 + i) % 211);
  const clock = { nowMs: () => 0 };
  test("replay: a core without room drafts nothing, and it is said", async () => {
    const outcome = await replay(streamOf([groupOf([1], text, text)]), OPTIONS, {
      drafter: new Replica({ limitBytes: 8192 }),
      clock,
    });
    expect(outcome.groups[0]?.tokens).toBe(400);
    expect(outcome.fullGroups).toBe(1);
  });
});

/** Every update takes a millisecond, as if the core were slow. */
class Loaded extends NaiveDrafter {
  readonly #clock: ManualClock;
  updates = 0;

  constructor(clock: ManualClock) {
    super();
    this.#clock = clock;
  }

  override update(groupId: GroupId, index: number, offset: number, tokens: Int32Array) {
    this.updates += 1;
    this.#clock.advance(1);
    return super.update(groupId, index, offset, tokens);
  }

  override propose(queries: readonly DraftQuery[]) {
    return super.propose(queries.map((query) => ({ ...query, tokensMax: 0 })));
  }
}
