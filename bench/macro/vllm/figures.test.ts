import { expect, test } from "bun:test";
import { readMetrics } from "../../../src/engines/vllm/metrics.ts";
import type { Run } from "./drive.ts";
import type { Prefill, Step } from "./engine-log.ts";
import {
  accountOf,
  accountTables,
  betweenChunksS,
  computedAgain,
  figuresIn,
  figuresOf,
  movesOf,
  notesOf,
  reportOf,
  tableOf,
  timelineOf,
} from "./figures.ts";
import { readSettings } from "./settings.ts";
import type { SystemName } from "./systems.ts";

function prefill(fields: Partial<Prefill>): Prefill {
  const request = { atS: 0, server: 0, group: 0, sample: 0, promptTokens: 10, madeTokens: 0 };
  return { ...request, foundTokens: 0, computedTokens: 10, resumed: 0, ...fields };
}

function step(fields: Partial<Step>): Step {
  const times = { beginS: 0, endS: 0, running: 1, waiting: 0, kvShare: 0.5, cpuS: 0 };
  const rows = { requests: 1, rows: 1, prefillRows: 0, draftRows: 0, tokensMade: 1, unfinished: 1 };
  return { ...times, ...rows, ...fields };
}

function run(fields: Partial<Run>): Run {
  return {
    texts: [[Array(3).fill(1), Array(5).fill(4)]],
    startS: 100,
    finishedS: [1, 2],
    wallS: 2,
    tailS: 1,
    counters: { ...readMetrics("").counters, generationTokens: 8, acceptedTokens: 4 },
    log: { steps: [[], []], prefills: [], ends: [], proposeUs: 0 },
    serversCpuS: 3,
    sidecarCpuS: 0,
    othersCpuShare: 0.1,
    idleCpuShare: 0,
    ...fields,
  };
}

const runsOf = (runs: Partial<Record<SystemName, readonly Run[]>>) =>
  new Map(Object.entries(runs) as [SystemName, readonly Run[]][]);

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
    { atS: 100.5, server: 0, group: 0, sample: 0, madeTokens: 9, stopped: 0 },
    { atS: 101, server: 1, group: 0, sample: 0, madeTokens: 12, stopped: 1 },
  ],
  proposeUs: 0,
};

test("computedAgain: what a continued chunk and a preempted request compute twice, without the last token", () => {
  const prefills = [
    prefill({}),
    prefill({ madeTokens: 32, foundTokens: 32, computedTokens: 10 }),
    prefill({ resumed: 1, madeTokens: 20, computedTokens: 30 }),
    prefill({ resumed: 1 }),
    // All but the last token is found, and vLLM adds 16 rows for drafts.
    prefill({ madeTokens: 23, foundTokens: 32, computedTokens: 17 }),
  ];
  expect(computedAgain({ prefills })).toBe(9 + 29 + 10);
});

test("movesOf: a chunk that goes on at the other server is a move; its prompt counts as nothing found", () => {
  const prefills = [
    prefill({ server: 0 }),
    prefill({ server: 0, madeTokens: 40 }),
    prefill({ server: 1, madeTokens: 60, foundTokens: 42 }),
    prefill({ server: 0, madeTokens: 90, foundTokens: 5 }),
    prefill({ server: 1, sample: 1, madeTokens: 0 }),
  ];
  expect(movesOf({ prefills })).toEqual({ moves: 2, tokens: 150, found: 32 });
});

test("timelineOf: holds each step's state until the next, and is zero where the server has nothing", () => {
  const steps = [
    step({ beginS: 100.1, endS: 100.2, requests: 3, kvShare: 0.75 }),
    step({ beginS: 100.6, endS: 100.7, requests: 2, kvShare: 0.25, unfinished: 0 }),
  ];
  const log = { steps: [steps, []], prefills: [], ends: [], proposeUs: 0 };
  const [first, second] = timelineOf(run({ log, wallS: 1 }));
  expect(first?.map(({ running }) => running)).toEqual([3, 3, 2, 0]);
  expect(first?.map(({ kvShare }) => kvShare)).toEqual([0.75, 0.75, 0.25, 0]);
  expect(second?.every(({ running, kvShare }) => running + kvShare === 0)).toBe(true);
});

test("figuresOf: KV while requests wait is the mean of both servers over that time alone; rounds are summed up", () => {
  const steps = [
    step({ beginS: 100, endS: 101, requests: 1, kvShare: 0.8 }),
    step({ beginS: 101, endS: 102, requests: 1, kvShare: 0.1 }),
  ];
  const log = { steps: [steps, []], prefills: [], ends: [], proposeUs: 0 };
  const figures = figuresOf([run({ log }), run({ log, wallS: 4, texts: [[[1, 2]]] })]);
  expect(figures).toMatchObject({ wall_s: 3, output_tokens: 10, tokens_per_step: 2 });
  expect(figures.rounds).toMatchObject([{ wall_s: 2, waiting_s: 1 }, { wall_s: 4 }]);
  expect(figures.rounds[0]?.kv_share_waiting).toBeCloseTo(0.4);
});

test("report: systems by name with means and rounds, ratios to plain and to suffix", () => {
  const runs = runsOf({
    plain: [run({ wallS: 8, tailS: 4 }), run({ wallS: 4, tailS: 2 })],
    suffix: [run({ wallS: 4, tailS: 2 }), run({ wallS: 2, tailS: 1 })],
    foretoken_plugin_pool: [run({ wallS: 2, tailS: 0.5 }), run({ wallS: 1, tailS: 0.25 })],
  });
  const report = JSON.parse(JSON.stringify(reportOf(runs, { setting: "paper" })));
  expect(Object.keys(report.systems)).toEqual(["plain", "suffix", "foretoken_plugin_pool"]);
  expect(report.systems.plain).toMatchObject({ wall_s: 6, tail_s: 3 });
  expect(report.systems.plain.rounds[0]).toMatchObject({ wall_s: 8, tail_s: 4 });
  const { foretoken_plugin_pool: ratios } = report.ratios;
  expect(ratios.wall_over_plain.mean).toBeCloseTo(4);
  expect(ratios.tail_over_plain.mean).toBeCloseTo(8);
  expect(ratios.wall_over_suffix.mean).toBeCloseTo(2);
  expect(tableOf(figuresIn(runs))).toContain("4.00 (4.00-4.00)");
});

test("notes: other processes' CPU time is named when it is too much to compare", () => {
  const notes = (...shares: number[]) =>
    notesOf(figuresIn(runsOf({ plain: shares.map((othersCpuShare) => run({ othersCpuShare })) })));
  expect(notes(0.01).join()).not.toContain("busy");
  expect(notes(0.01, 0.2).join()).toContain("other processes used 1 % to 20 %");
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
  expect(accountTables(runsOf({ plain: [run({ log: LOG, wallS: 1.25 })] }))).toContain("= speed");
});

test("betweenChunksS: from a chunk's end to the response's next begin; a preemption is none", () => {
  const prefills = [...LOG.prefills, prefill({ atS: 100.8, server: 1, resumed: 1 })];
  expect(betweenChunksS({ ...LOG, prefills })).toEqual([expect.closeTo(0.25)]);
});

test("settings: a bad value is refused by option, value and what it may be", () => {
  const refused =
    (...args: string[]) =>
    () =>
      readSettings(args);
  expect(refused("--rounds", "0")).toThrow("--rounds is 0; it is a number above 0");
  expect(refused("--setting", "x")).toThrow("--setting is x; it is one of paper, bulk, ample");
  expect(refused("--systems", "plain,sglang")).toThrow("--systems is sglang; it is one of plain");
  const { sizes, launch, systems } = readSettings(["--setting", "bulk", "--systems", "suffix"]);
  expect(sizes).toMatchObject({ rounds: 5, groups: 16, siblings: 8, maxTokens: 1024 });
  expect(launch).toMatchObject({ kvBlocks: 256, contextTokens: 1600, chunkTokens: null });
  expect(systems).toEqual(["suffix"]);
});
