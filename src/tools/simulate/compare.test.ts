// A recorded iteration, made by a simulation whose engines are known: what is learnt from its report, and what is made of it.

import { expect, test } from "bun:test";
import type { ChunkRow } from "../../core/rollout/timeline.ts";
import { POLICY_NAMES, schedulerFor } from "../../core/schedule/policies.ts";
import { loadCore } from "../../core/wasm/load.ts";
import type { TracedRun } from "../trace/report.ts";
import { comparePolicies } from "./compare.ts";
import type { EngineTimes } from "./engine.ts";
import { recordingOf } from "./recording.ts";
import { type GroupModel, Simulation } from "./simulation.ts";

const core = loadCore();
const TIMES: EngineTimes = {
  kvBytesPerToken: 1,
  stepMs: (_, rows) => 10 + 0.5 * rows,
  prefillMs: (tokens) => 0.4 * tokens,
  transferMs: (tokens) => 0.02 * tokens,
};
/** Lengths that differ by group and within it, so that the order counts. */
const GROUPS: readonly GroupModel[] = Array.from({ length: 8 }, (_, i) => ({
  promptTokens: 20 + i,
  lengths: [0, 1, 2, 3, 4, 5].map((j) => 40 + 30 * ((3 * i) % 8) + 17 * j),
  atMs: i < 4 ? 0 : 500,
}));

/** A report of `seer` on two engines of so little KV that tokens are reported as they come. */
async function recorded(slowdowns: readonly number[] = [1, 1], base = TIMES) {
  const simulation = new Simulation({
    groups: GROUPS,
    engines: slowdowns.map((slowdown) => ({
      slots: 8,
      kvTokens: 2048,
      times: { ...base, stepMs: (_, rows) => slowdown * (10 + 0.5 * rows) },
      speculation: null,
    })),
    tokensMax: 512,
    core,
    chunkTokens: 32,
    reportsTokens: true,
    schedulerFor: (parts) => schedulerFor("seer", parts),
    movesKv: false,
    isPaced: true,
  });
  await simulation.run();
  const { wallS } = simulation.figures();
  return { wallS, run: { name: "seer", timeline: simulation.rollout.meter.timeline() } };
}

test("recording: requests, engines and their step times are those that were recorded", async () => {
  const { run, wallS } = await recorded();
  const recording = recordingOf(run, "report.json");
  expect(recording.groups.map(({ lengths }) => lengths)).toEqual(
    GROUPS.map(({ lengths }) => lengths),
  );
  expect(recording.groups.map(({ promptTokens }) => promptTokens)).toEqual(
    GROUPS.map(({ promptTokens }) => promptTokens),
  );
  expect(recording.groups.map(({ atMs }) => atMs)).toEqual(GROUPS.map(({ atMs }) => atMs));
  expect(recording.tokensMax).toBe(512);
  expect(recording.recorded.wall_s).toBeCloseTo(wallS, 3);
  // Most steps had eight rows.
  const [engine] = recording.engines;
  expect(Math.abs((engine?.times.stepMs(8, 8, 0) ?? 0) / TIMES.stepMs(8, 8, 0) - 1)).toBeLessThan(
    0.1,
  );
  expect(recording.engines.map(({ slots, kvTokens }) => [slots, kvTokens])).toEqual([
    [8, 2048],
    [8, 2048],
  ]);
  expect(recording.recorded.step_error).toBeLessThan(0.1);
});

test("simulate: the policy that was recorded takes as long as it took, and others what they would take", async () => {
  const { run, wallS } = await recorded();
  const recording = recordingOf(run, "report.json");
  const options = { policies: POLICY_NAMES, chunkTokens: 32, core };
  const { runs } = await comparePolicies(recording, options);
  expect(Math.abs((runs.seer?.wall_s ?? 0) / wallS - 1)).toBeLessThan(0.1);
  const tokens = GROUPS.flatMap(({ lengths }) => lengths).reduce((sum, length) => sum + length, 0);
  for (const policy of POLICY_NAMES) expect(runs[policy]?.output_tokens).toBe(tokens);
  expect(runs.group?.migrations).toBe(0);
  expect(runs.group?.speedup).toBe(1);
  expect(runs.seer?.speedup).toBeGreaterThan(1);
});

test("recording: what prefill took is no part of the steps", async () => {
  const prefillMs = (tokens: number): number => 2 * tokens;
  const { run, wallS } = await recorded([1, 1], { ...TIMES, prefillMs });
  const recording = recordingOf(run, "report.json");
  const [engine] = recording.engines;
  expect(Math.abs((engine?.times.prefillMs(100, 0) ?? 0) / prefillMs(100) - 1)).toBeLessThan(0.25);
  expect(Math.abs((engine?.times.stepMs(8, 8, 0) ?? 0) / TIMES.stepMs(8, 8, 0) - 1)).toBeLessThan(
    0.25,
  );
  const { runs } = await comparePolicies(recording, {
    policies: ["seer"],
    chunkTokens: 32,
    core,
  });
  expect(Math.abs((runs.seer?.wall_s ?? 0) / wallS - 1)).toBeLessThan(0.1);
});

test("recording: an engine that was slower than the other stays so", async () => {
  const { run } = await recorded([1, 3]);
  const [fast, slow] = recordingOf(run, "report.json").engines.map(({ times }) =>
    times.stepMs(4, 4, 0),
  );
  expect((slow ?? 0) / (fast ?? 1)).toBeGreaterThan(2.4);
});

/** The run with other rows of its chunks. `context`: tokens of prompt and output before the chunk; null: it did not move. */
function withRows(
  { name, timeline }: TracedRun,
  rowOf: (row: ChunkRow, context: number | null) => ChunkRow,
): TracedRun {
  const responses = timeline.responses.map(({ chunks, ...response }) => {
    let context = response.prompt_tokens;
    const rows = chunks.map((row, i) => {
      const isMoved = i > 0 && chunks[i - 1]?.[0] !== row[0];
      const made = rowOf(row, isMoved ? context : null);
      context += row[4];
      return made;
    });
    return { ...response, chunks: rows };
  });
  return { name, timeline: { ...timeline, responses } };
}

test("recording: KV moves where a chunk loaded it, and is computed again where none did", async () => {
  const { run } = await recorded();
  const without = recordingOf(run, "report.json");
  expect(without.movesKv).toBe(false);
  const loading = withRows(run, (row, context) => {
    if (context === null) return row;
    const [worker, startMs, endMs, , tokens, , ...rest] = row;
    return [worker, startMs, endMs, startMs + 0.1 * context, tokens, context, ...rest];
  });
  const { movesKv, engines } = recordingOf(loading, "report.json");
  expect(movesKv).toBe(true);
  expect(engines[0]?.times.transferMs(100)).toBeCloseTo(10, 6);
});

test("recording: a step makes as many tokens of a request as the drafts of recorded ones accepted", async () => {
  const { run } = await recorded();
  const drafted = withRows(
    run,
    ([worker, startMs, endMs, firstMs, tokens, kvTokens, , , ...rest]) => {
      const accepted = Math.floor((tokens - 1) / 2);
      return [worker, startMs, endMs, firstMs, tokens, kvTokens, 2 * accepted, accepted, ...rest];
    },
  );
  const plain = recordingOf(run, "report.json");
  const recording = recordingOf(drafted, "report.json");
  expect(plain.recorded.tokens_per_step).toBe(1);
  expect(recording.recorded.tokens_per_step).toBeGreaterThan(1.8);
  // As many tokens in the same time: so much longer was a step.
  expect(recording.recorded.step_ms / plain.recorded.step_ms).toBeGreaterThan(1.5);
});

test("recording: what cannot be simulated is refused by name", async () => {
  const { run } = await recorded();
  const { timeline } = run;
  const refused = (change: object): string => {
    try {
      recordingOf({ name: "seer", timeline: { ...timeline, ...change } }, "report.json");
    } catch (error) {
      return String(error);
    }
    return "taken";
  };
  expect(refused({ responses_left_out: 3 })).toContain("responses_left_out is 3");
  expect(refused({ responses: [] })).toContain("has no response");
  const older = timeline.responses.map(({ prompt_tokens: _, ...rest }) => rest);
  expect(refused({ responses: older })).toContain("prompt_tokens is missing");
  const small = timeline.workers.map((worker) => ({ ...worker, kv_tokens: 350 }));
  expect(refused({ workers: small })).toContain(
    "kv_tokens is 350; the longest prompt and response",
  );
  const long = timeline.responses.map((response) => ({ ...response, tokens_max: 9999 }));
  const capped = recordingOf({ name: "seer", timeline: { ...timeline, responses: long } }, "r");
  expect(capped.tokensMax).toBe(2048 - 27 - 1);
  const short = timeline.responses.slice(0, 1).map((one) => ({ ...one, chunks: [] }));
  expect(refused({ responses: short })).toContain("too short");
});
