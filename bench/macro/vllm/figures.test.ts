import { expect, test } from "bun:test";
import { computedAgain, figuresOf, figuresOfAll, movesOf, timelineOf } from "./figures.ts";
import { prefill, run, step } from "./testing.ts";

test("computedAgain: what a continued chunk and a preempted request compute twice, without the last token", () => {
  const prefills = [
    prefill({}),
    prefill({ madeTokens: 32, foundTokens: 32, computedTokens: 10 }),
    prefill({ isResumed: true, madeTokens: 20, computedTokens: 30 }),
    prefill({ isResumed: true }),
    // All but the last token is found, and vLLM adds 16 rows for drafts.
    prefill({ madeTokens: 23, foundTokens: 32, computedTokens: 17 }),
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
