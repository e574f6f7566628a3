import { expect, test } from "bun:test";
import type { RunReport } from "../core/rollout/report.ts";
import { busyNote, measured, parseCompare, type RoundsReport, withRounds } from "./rounds.ts";

const report = (wall_s: number) => ({ wall_s, tail_s: wall_s / 10 }) as RunReport;
const round = (wall_s: number, others_cpu_share: number | null = 0) => ({
  wall_s,
  tail_s: 0,
  cpu_s: 1,
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
  if (process.platform !== "linux") return;
  expect(one.others_cpu_share).toBeGreaterThanOrEqual(0);
  expect(one.others_cpu_share).toBeLessThanOrEqual(1);
});

test("busyNote: only where other processes used a tenth of the machine", () => {
  const of = (...shares: (number | null)[]): RoundsReport[] => [
    { ...report(1), rounds: shares.map((share) => round(1, share)) },
  ];
  expect(busyNote(of(0, 0.09))).toBeNull();
  expect(busyNote(of(null))).toBeNull();
  expect(busyNote(of(0.05, 0.4))).toContain("used 5 % to 40 % of its CPU time");
  expect(busyNote(of(0.4))).toContain("used 40 % of its CPU time");
});

test("compare: drafting is on with seer and off with the baselines; one that a run names wins over --draft", () => {
  expect(parseCompare("group,seer", null)).toEqual([
    { name: "group", policy: "group", draft: "off" },
    { name: "seer", policy: "seer", draft: "grouped" },
  ]);
  const drafts = parseCompare("seer:off,seer", "grouped").map((run) => run.draft);
  expect(drafts).toEqual(["off", "grouped"]);
});

test("compare: names the part that is wrong", () => {
  expect(() => parseCompare("group,best", null)).toThrow('--compare names "best"');
  expect(() => parseCompare("seer:much", null)).toThrow("grouped, off");
  expect(() => parseCompare("seer,seer", null)).toThrow("twice");
  expect(() => parseCompare("", null)).toThrow('names ""');
});
