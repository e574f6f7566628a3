import { expect, test } from "bun:test";
import { accountOf, accountTables, betweenChunksS } from "./account.ts";
import type { Run } from "./drive.ts";
import { figuresOf, figuresOfAll } from "./figures.ts";
import { notesOf, reportOf, tableOf } from "./report.ts";
import { readSettings } from "./settings.ts";
import { SYSTEMS, type SystemName } from "./systems.ts";
import { prefill, run, step } from "./testing.ts";

function foundOf(runs: Partial<Record<SystemName, readonly Run[]>>) {
  return new Map(
    SYSTEMS.flatMap((name) => {
      const of = runs[name];
      return of === undefined ? [] : [[name, figuresOfAll(of.map(figuresOf))] as const];
    }),
  );
}

const LOG = {
  steps: [
    [
      step({ beginS: 100, endS: 100.5, requests: 4, rows: 4, tokensMade: 4 }),
      step({ beginS: 100.6, endS: 101, requests: 2, rows: 6, tokensMade: 4, unfinished: 0 }),
    ],
    [step({ beginS: 100, endS: 100.1, requests: 1, rows: 9, prefillRows: 9, unfinished: 0 })],
  ],
  prefills: [prefill({ atS: 100 }), prefill({ atS: 100.75, server: 1, madeTokens: 9 })],
  ends: [
    { ...{ atS: 100.5, server: 0, group: 0, sample: 0 }, madeTokens: 9, isStopped: false },
    { ...{ atS: 101, server: 1, group: 0, sample: 0 }, madeTokens: 12, isStopped: true },
  ],
  proposeUs: 0,
};

test("report: systems by name with means and rounds, ratios to plain and to suffix", () => {
  const found = foundOf({
    plain: [run({ wallS: 8, tailS: 4 }), run({ wallS: 4, tailS: 2 })],
    suffix: [run({ wallS: 4, tailS: 2 }), run({ wallS: 2, tailS: 1 })],
    foretoken_plugin_pool: [run({ wallS: 2, tailS: 0.5 }), run({ wallS: 1, tailS: 0.25 })],
  });
  const report = JSON.parse(JSON.stringify(reportOf(found, { setting: "paper" })));
  expect(Object.keys(report.systems)).toEqual(["plain", "suffix", "foretoken_plugin_pool"]);
  expect(report.systems.plain).toMatchObject({ wall_s: 6, tail_s: 3 });
  expect(report.systems.plain.rounds[0]).toMatchObject({ wall_s: 8, tail_s: 4 });
  const { foretoken_plugin_pool: ratios } = report.ratios;
  expect(ratios.wall_over_plain.mean).toBeCloseTo(4);
  expect(ratios.tail_over_plain.mean).toBeCloseTo(8);
  expect(ratios.wall_over_suffix.mean).toBeCloseTo(2);
  expect(tableOf(found)).toContain("4.00 (4.00-4.00)");
});

test("notes: other processes' CPU time is named when it is too much to compare", () => {
  const quiet = foundOf({ plain: [run({ othersCpuShare: 0.01 })] });
  const busy = foundOf({ plain: [run({ othersCpuShare: 0.01 }), run({ othersCpuShare: 0.2 })] });
  expect(notesOf(quiet).join()).not.toContain("busy");
  expect(notesOf(busy).join()).toContain("other processes used 1 % to 20 %");
});

test("account: the factors multiply to the wall time", () => {
  const account = accountOf([run({ log: LOG, wallS: 1.25 })]);
  expect(account).toMatchObject({ steps: 3, tokens: 9, prefill_rows: 9, chunks: 2 });
  expect(account.between_share).toBeCloseTo(0.1 / 2.5);
  expect(account.busy_share + account.between_share + account.idle_share).toBeCloseTo(1);
  expect(account.between_chunks_ms).toBeCloseTo(250);
  const { tokens, step_ms, requests_per_step, tokens_per_step, busy_share } = account;
  const wallS = (tokens * step_ms) / 1000 / (requests_per_step * tokens_per_step * busy_share * 2);
  expect(wallS).toBeCloseTo(1.25);
  expect(account.steps_by_rows).toEqual([
    { rows_min: 4, steps: 1, ms: expect.closeTo(500) },
    { rows_min: 6, steps: 1, ms: expect.closeTo(400) },
  ]);
  expect(accountTables(new Map([["plain", account]]))).toContain("= speed");
});

test("betweenChunksS: from a chunk's end to the response's next begin; a preemption is none", () => {
  const prefills = [...LOG.prefills, prefill({ atS: 100.8, server: 1, isResumed: true })];
  expect(betweenChunksS({ ...LOG, prefills })).toEqual([expect.closeTo(0.25)]);
});

test("settings: a bad value is refused by option, value and what it may be", () => {
  const refused =
    (...args: string[]) =>
    () =>
      readSettings(args);
  expect(refused("--rounds", "0")).toThrow("--rounds is 0; it is a whole number from 1 on");
  expect(refused("--setting", "x")).toThrow("--setting is x; it is one of paper, bulk, ample");
  expect(refused("--systems", "plain,sglang")).toThrow("--systems names sglang; there are plain");
  const { sizes, launch, systems } = readSettings(["--setting", "bulk", "--systems", "suffix"]);
  expect(sizes).toMatchObject({ rounds: 5, groups: 16, siblings: 8, maxTokens: 1024 });
  expect(launch).toMatchObject({ kvBlocks: 256, contextTokens: 1600, chunkTokens: null });
  expect(systems).toEqual(["suffix"]);
});
