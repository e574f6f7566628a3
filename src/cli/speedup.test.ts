import { expect, test } from "bun:test";
import type { RoundsReport } from "./rounds.ts";
import { speedups } from "./speedup.ts";

const runOf = (wall_s: number, engine_s: number, more: object = {}) =>
  ({
    busy_s: 1,
    draft_saved_s: 0,
    draft: "off",
    drafts: 0,
    requests: 32,
    interrupted: false,
    rounds: [
      { wall_s, engine_s, tail_s: 1, cpu_s: 1, others_cpu_share: 0, equal_responses: 32, ...more },
    ],
    ...more,
  }) as unknown as RoundsReport;

test("speedups: of wall times, and of engine times where other processes used the machine", () => {
  const group = runOf(60, 59);
  expect(speedups({ group, seer: runOf(20, 19) })).toEqual([
    "seer finished 3.00 times as fast as group: 3.00 from balance and KV kept; 32 of 32 responses are equal.",
  ]);
  const disturbed = runOf(74, 19.5, { others_cpu_share: 0.3 });
  expect(speedups({ group, seer: disturbed })[0]).toStartWith(
    "By engine time seer finished 3.03 times as fast as group: ",
  );
  // Servers count the time of a step by the clock.
  expect(speedups({ group, seer: disturbed }, ["http://gpu-0:8000"])[0]).toStartWith(
    "seer finished 0.81 times as fast as group: ",
  );
});

test("speedups: a run that may draft and did not says why, and how many responses are equal", () => {
  const none = runOf(20, 19, { draft: "grouped", equal_responses: 31 });
  const [sentence] = speedups({ group: runOf(60, 59), seer: none });
  expect(sentence).toEndWith(
    "; no drafts were made: by the step times measured here they do not pay; 31 of 32 responses are equal.",
  );
  const [served] = speedups({ group: runOf(60, 59), seer: none }, ["http://gpu-0:8000"]);
  expect(served).toContain("no drafts were made: these servers make none");
});

test("speedups: the factors multiply to the whole; drafts that cost time count as 1", () => {
  const group = runOf(30, 30, { busy_s: 15 });
  const seer = runOf(15, 15, { busy_s: 10, draft_saved_s: 6 });
  expect(speedups({ group, seer })[0]).toStartWith(
    "seer finished 2.00 times as fast as group: 1.25 from balance and KV kept, 1.60 from drafts",
  );
  const costly = runOf(25, 25, { busy_s: 9, draft_saved_s: -1 });
  expect(speedups({ group, seer: costly })[0]).toContain(
    "1.20 from balance and KV kept, 1.00 from drafts",
  );
});
