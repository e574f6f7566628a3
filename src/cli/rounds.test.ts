import { expect, test } from "bun:test";
import type { RolloutRequest } from "../core/request/buffer.ts";
import type { RunReport } from "../core/rollout/report.ts";
import {
  busyNotes,
  equalResponses,
  measured,
  type RoundsReport,
  speedups,
  withRounds,
} from "./rounds.ts";

const report = (wall_s: number) =>
  ({
    wall_s,
    tail_s: wall_s / 10,
    workers: [{ busy_s: 0.4 }, { busy_s: 0.9 }],
  }) as unknown as RunReport;
const round = (wall_s: number, others_cpu_share: number | null = 0) => ({
  wall_s,
  tail_s: 0,
  cpu_s: 1,
  engine_s: 1,
  others_cpu_share,
});

test("withRounds: the report is the median round's, the rounds stand in order", () => {
  const runs = [9, 4, 6].map((wall) => ({ report: report(wall), round: round(wall) }));
  const all = withRounds(runs);
  expect(all.wall_s).toBe(6);
  expect(all.rounds.map(({ wall_s }) => wall_s)).toEqual([9, 4, 6]);
});

test("measured: CPU time is this process's, and other processes' share lies between 0 and 1", async () => {
  const { round: one } = await measured(async () => {
    const until = performance.now() + 100;
    while (performance.now() < until) Math.sqrt(until);
    return report(0.1);
  });
  expect(one.cpu_s).toBeGreaterThan(0);
  expect(one.engine_s).toBe(0.9);
  if (process.platform !== "linux") return;
  expect(one.others_cpu_share).toBeGreaterThanOrEqual(0);
  expect(one.others_cpu_share).toBeLessThanOrEqual(1);
});

test("busyNotes: only where other processes used a tenth of the machine", () => {
  const of = (...shares: (number | null)[]): RoundsReport[] => [
    { ...report(1), rounds: shares.map((share) => round(1, share)) },
  ];
  expect(busyNotes(of(0, 0.09))).toEqual([]);
  expect(busyNotes(of(null))).toEqual([]);
  expect(busyNotes(of(0.05, 0.4))[0]).toContain("used 5 % to 40 % of its CPU time");
  expect(busyNotes(of(0.4))[0]).toContain("used 40 % of its CPU time");
  expect(busyNotes(of(0.4))[0]).toContain("engine times do");
  expect(busyNotes(of(0.4), true)[0]).toEndWith("CPU time. Wall times do not compare.");
});

test("equalResponses: counts the finished responses whose tokens are those of the first run", () => {
  const group = (...texts: (number[] | null)[]) =>
    texts.flatMap((tokens, sampleIndex) =>
      tokens === null
        ? []
        : { spec: { sampleIndex }, response: { tokens: () => Int32Array.from(tokens) } },
    ) as unknown as RolloutRequest[];
  const first = new Map();
  const runs = [group([1, 2], [3], null), group([1, 2], [4], [5]), group([1], null, [5])];
  expect(runs.map((run) => equalResponses(first, "g", run))).toEqual([2, 2, 1]);
});

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
