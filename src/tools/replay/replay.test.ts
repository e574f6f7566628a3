import { describe, expect, test } from "bun:test";
import type { GroupId } from "../../core/base/ids.ts";
import type { DraftQuery, Drafts } from "../../core/draft/drafter.ts";
import { Replica } from "../../core/draft/replica.ts";
import type { TraceGroup } from "./recordings.ts";
import { type ReplayOptions, replay } from "./replay.ts";

class CountingReplica extends Replica {
  /** Names of groups that were dropped, in order. */
  readonly dropped: GroupId[] = [];
  /** Largest number of queries in one call. */
  queriesMost = 0;

  override drop(groupId: GroupId): void {
    if (this.has(groupId)) this.dropped.push(groupId);
    super.drop(groupId);
  }

  override propose(queries: readonly DraftQuery[]): Drafts {
    this.queriesMost = Math.max(this.queriesMost, queries.length);
    return super.propose(queries);
  }
}

const OPTIONS: ReplayOptions = { drafter: "grouped", budget: 4, probabilityMin: 0.01, live: 2 };

function groupOf(prompt: number[], ...responses: number[][]): TraceGroup {
  const lists = responses.map((response) => Int32Array.from(response));
  return { name: "g", prompt: Int32Array.from(prompt), responses: lists };
}

async function* streamOf(groups: readonly TraceGroup[]): AsyncGenerator<TraceGroup> {
  yield* groups;
}

async function run(groups: readonly TraceGroup[], options: Partial<ReplayOptions> = {}) {
  const drafter = new CountingReplica({ learning: false });
  const clock = { nowMs: () => 0 };
  const outcome = await replay(streamOf(groups), { ...OPTIONS, ...options }, { drafter, clock });
  return { ...outcome, drafter };
}

describe("concurrent", () => {
  test("replay: a response sees what its siblings had when the round began, and nothing of the round", async () => {
    // Round 1: nothing has been said. Round 2: after 1, the sibling has not gone on either. Round 3: after 2
    // the sibling has not gone on. So twins in lock step never help one another.
    const { groups } = await run([groupOf([], [1, 2, 3, 4], [1, 2, 3, 4])]);
    expect(groups[0]).toMatchObject({ steps: 8, drafted: 0, accepted: 0 });
  });

  test("replay: accepted draft tokens and one more come out of a step, and none behind the end", async () => {
    // From the response's own text 1 2 3 1, 2 3 1 2 are drafted, of which three are left.
    const { groups } = await run([groupOf([], [1, 2, 3, 1, 2, 3, 1])]);
    expect(groups[0]).toMatchObject({ tokens: 7, steps: 5, accepted: 3 });
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
