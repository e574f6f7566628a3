import { expect, test } from "bun:test";
import { readMetrics } from "../../../src/worker/vllm/metrics.ts";
import type { Run } from "./drive.ts";
import type { Prefill, Step } from "./engine-log.ts";
import { computedAgain, figuresOf, figuresOfAll, movesOf, timelineOf } from "./figures.ts";
import { stretchesOf } from "./lengths.ts";

function prefill(fields: Partial<Prefill>): Prefill {
  return {
    ...{ atS: 0, server: 0, group: 0, sample: 0, promptTokens: 10, madeTokens: 0 },
    ...{ foundTokens: 0, computedTokens: 10, isResumed: false },
    ...fields,
  };
}

function step(fields: Partial<Step>): Step {
  return {
    ...{ beginS: 0, endS: 0, running: 1, waiting: 0, requests: 1, rows: 1, prefillRows: 0 },
    ...{ draftRows: 0, kvShare: 0.5, tokensMade: 1, unfinished: 1 },
    ...fields,
  };
}

function run(fields: Partial<Run>): Run {
  return {
    ...{ lengths: [[3, 5]], startS: 100, finishedS: [1, 2], wallS: 2, tailS: 1 },
    ...{ counters: { ...readMetrics("").counters, generationTokens: 8, acceptedTokens: 4 } },
    ...{ log: { steps: [[], []], prefills: [], ends: [], proposeUs: 0 } },
    ...{ serversCpuS: 3, sidecarCpuS: 0, othersCpuShare: 0.1 },
    ...fields,
  };
}

test("computedAgain: what a continued chunk and a preempted request compute twice, without the last token", () => {
  const prefills = [
    prefill({}),
    prefill({ madeTokens: 32, foundTokens: 32, computedTokens: 10 }),
    prefill({ isResumed: true, madeTokens: 20, computedTokens: 30 }),
    prefill({ isResumed: true }),
  ];
  expect(computedAgain({ steps: [], prefills, ends: [], proposeUs: 0 })).toBe(9 + 29 + 10);
});

test("movesOf: a chunk that goes on at the other server is a move; its prompt counts as nothing found", () => {
  const prefills = [
    prefill({ server: 0 }),
    prefill({ server: 0, madeTokens: 40 }),
    prefill({ server: 1, madeTokens: 60, foundTokens: 42 }),
    prefill({ server: 0, madeTokens: 90, foundTokens: 5 }),
    prefill({ server: 1, sample: 1, madeTokens: 0 }),
  ];
  expect(movesOf({ steps: [], prefills, ends: [], proposeUs: 0 })).toEqual({
    moves: 2,
    moved_tokens: 150,
    moved_tokens_found: 32,
  });
});

test("timelineOf: holds each step's state until the next, and is zero where the server has nothing", () => {
  const steps = [
    step({ beginS: 100.1, endS: 100.2, requests: 3, kvShare: 0.75 }),
    step({ beginS: 100.6, endS: 100.7, requests: 2, kvShare: 0.25, unfinished: 0 }),
  ];
  const log = { steps: [steps, []], prefills: [], ends: [], proposeUs: 0 };
  const { servers } = timelineOf(run({ log, wallS: 1 }));
  expect(servers[0]).toEqual({ running: [3, 3, 2, 0], kv_share: [0.75, 0.75, 0.25, 0] });
  expect(servers[1]).toEqual({ running: [0, 0, 0, 0], kv_share: [0, 0, 0, 0] });
});

test("figuresOf: KV while requests wait is the mean of both servers over that time alone", () => {
  const steps = [
    step({ beginS: 100, endS: 101, requests: 1, kvShare: 0.8 }),
    step({ beginS: 101, endS: 102, requests: 1, kvShare: 0.1 }),
  ];
  const figures = figuresOf(
    run({ log: { steps: [steps, []], prefills: [], ends: [], proposeUs: 0 } }),
  );
  expect(figures.waiting_s).toBe(1);
  expect(figures.kv_share_waiting).toBeCloseTo(0.4);
  expect(figures.tokens_per_step).toBe(2);
  const all = figuresOfAll([figures, { ...figures, wall_s: 4, output_tokens: 2 }]);
  expect(all).toMatchObject({ wall_s: 3, output_tokens: 10 });
  expect(all.rounds.map(({ wall_s }) => wall_s)).toEqual([2, 4]);
});

test("stretchesOf: numbers that follow each other", () => {
  expect(stretchesOf([0, 1, 2, 5, 7, 8])).toEqual([
    [0, 3],
    [5, 6],
    [7, 9],
  ]);
});
