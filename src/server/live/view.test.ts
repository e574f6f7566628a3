// What the page is shown besides the stream, over a sidecar with simulated workers.

import { expect, test } from "bun:test";
import { mkdtempSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { DEAF, newBed, specFor } from "../../../test/suite/stream-bed.ts";
import { ITERATIONS_KEPT, IterationStore } from "./iteration-store.ts";
import { SAMPLES_MAX, Samples } from "./samples.ts";
import { LiveView } from "./view.ts";

const FOLDER = mkdtempSync(join(tmpdir(), "foretoken-live-"));

function shown(
  options: { file?: string | null; lengthOf?: (spec: { sampleIndex: number }) => number } = {},
) {
  const bed = newBed({ workers: 2, lengthOf: options.lengthOf ?? (() => 40) });
  const members = bed.workers.map(({ workerId }) => ({
    source: { name: `vllm-${workerId}` },
    workerId,
    state: "ready",
  }));
  const weights = {
    isUpdating: false,
    isAsleep: false,
    pauseState: () => {
      const mode = bed.sidecar.rollout.pauseMode;
      return { is_paused: mode !== null, reason: `paused with mode ${mode}` };
    },
  };
  const changes: { state: string; waiting: number }[] = [];
  const view = new LiveView({
    sidecar: bed.sidecar,
    pool: { members } as never,
    weights,
    clock: bed.clock,
    nowS: () => 1000,
    iterationsFile: options.file ?? null,
    every: () => () => {},
    changed: ({ state, waiting }) => changes.push({ state, waiting }),
    failed: (error) => {
      throw error;
    },
  });
  const answer = () => view.answer() as Record<string, never> & { stragglers: object[] };
  return { bed, view, weights, changes, answer, members };
}

const SUMMARY = {
  weightEpoch: 0,
  requests: 4,
  tokens: 40,
  seconds: 10,
  tokensPerS: 4,
  tailS: 2,
  preemptions: 0,
  restarts: 0,
  failures: 0,
  aborted: 0,
  unfinished: 0,
};

test("live: a pause is reported as it begins, while requests wait for it, and as it ends", async () => {
  const { bed, view, changes, weights, answer } = shown();
  view.look();
  expect(changes).toEqual([]);
  void bed.sidecar.rollout.pause("keep");
  bed.sidecar.generate(specFor([1], 2), DEAF);
  view.look();
  expect(changes).toEqual([{ state: "paused", waiting: 2 }]);
  expect(answer()).toMatchObject({
    state: "paused",
    reason: "paused with mode keep; POST /resume ends it",
  });
  bed.clock.advance(61_000);
  view.look();
  expect(changes).toHaveLength(2);
  weights.isAsleep = true;
  view.look();
  weights.isUpdating = true;
  view.look();
  weights.isUpdating = false;
  weights.isAsleep = false;
  bed.sidecar.rollout.resume();
  view.look();
  expect(changes.map(({ state }) => state)).toEqual([
    ...["paused", "paused", "sleeping", "updating", "serving"],
  ]);
  await bed.finish();
  void bed.sidecar.drain();
  expect(view.state.state).toBe("draining");
});

test("live: without a ready worker the state names them", () => {
  const { view, members } = shown();
  for (const member of members) member.state = "fenced";
  expect(view.state).toEqual({
    state: "no_worker",
    reason: "vllm-0 is fenced, vllm-1 is fenced",
  });
});

test("live: samples of the iteration are there for a page that comes later, and go with the next one", async () => {
  const { bed, view, answer } = shown();
  bed.sidecar.generate(specFor([1], 6), DEAF);
  for (let i = 0; i < 5; i += 1) {
    await bed.step();
    view.look();
  }
  const { samples } = answer() as unknown as { samples: { at_s: number[]; workers: object } };
  expect(samples.at_s).toHaveLength(5);
  expect(Object.keys(samples.workers)).toEqual(["0", "1"]);
  await bed.finish();
  bed.sidecar.rollout.meter.iterationEnded();
  bed.sidecar.generate(specFor([2], 1), DEAF);
  view.look();
  expect((answer() as unknown as { samples: { at_s: number[] } }).samples.at_s).toHaveLength(1);
});

test("live: whom the iteration waits for, and why", async () => {
  const { bed, view, answer } = shown({ lengthOf: ({ sampleIndex: i }) => (i === 3 ? 90 : 10) });
  bed.sidecar.generate(specFor([1], 4), DEAF);
  while (bed.sidecar.rollout.unfinished > 1) await bed.step();
  for (let i = 0; i < 5; i += 1) await bed.step();
  view.look();
  answer();
  bed.clock.advance(1000);
  const [one, ...others] = answer().stragglers as { reason: string; siblings_median: number }[];
  expect(others).toEqual([]);
  expect(one?.siblings_median).toBe(10);
  expect(one?.reason).toMatch(/^[0-9.]+ times its siblings' median, alone on vllm-[01]/);
});

test("live: estimates of incomplete groups, from their first finished response on", async () => {
  const { bed, answer } = shown({ lengthOf: ({ sampleIndex: i }) => (i === 3 ? 90 : 10) });
  bed.sidecar.generate(specFor([1], 4), DEAF);
  await bed.step();
  expect(answer()).toMatchObject({ estimates: { groups: [], tokens: [] } });
  while (bed.sidecar.rollout.unfinished > 1) await bed.step();
  const { estimates } = answer() as unknown as {
    estimates: { groups: string[]; tokens: number[] };
  };
  expect(estimates.groups).toHaveLength(1);
  expect(estimates.tokens[0]).toBeGreaterThanOrEqual(10);
  await bed.finish();
});

test("live: the last iterations outlive the server, 50 of them", () => {
  const file = join(FOLDER, "deep", "iterations.sqlite");
  const first = shown({ file });
  for (let i = 0; i < ITERATIONS_KEPT + 3; i += 1) {
    first.view.iterationEnded({ ...SUMMARY, weightEpoch: i });
  }
  first.view.close();
  const second = new IterationStore(file);
  const all = second.all();
  expect(all).toHaveLength(ITERATIONS_KEPT);
  expect(all.at(-1)).toMatchObject({ number: 53, weight_epoch: 52, wall_s: 10, tail_s: 2 });
  second.close();
  const bad = join(FOLDER, "bad.sqlite");
  writeFileSync(
    bad,
    "this is no database at all, but text that is long enough to be read as one\n".repeat(20),
  );
  expect(() => new IterationStore(bad)).toThrow("--iterations");
});

test("samples: bounded however long an iteration is, and the estimates are judged at its end", () => {
  const samples = new Samples();
  const { bed } = shown();
  const progress = bed.sidecar.rollout.meter.progress();
  for (let s = 0; s < 10_000; s += 1) {
    const isRight = s % 4 !== 0;
    const etaHighS = isRight ? 20_000 : 1;
    samples.add({ ...progress, elapsedS: s, etaLowS: 0, etaHighS });
  }
  expect(samples.all.length).toBeLessThan(SAMPLES_MAX);
  expect(samples.all.at(-1)?.atS).toBeGreaterThan(9_900);
  const early = new Samples();
  for (let s = 0; s < 100; s += 1) {
    early.add({ ...progress, elapsedS: s, etaLowS: 0, etaHighS: s < 60 ? 1 : 200 });
  }
  const { eta_low_s, eta_high_s } = early.columns as { eta_low_s: number[]; eta_high_s: number[] };
  expect([eta_low_s[99], eta_high_s[59], eta_high_s[60]]).toEqual([0, 1, 200]);
  // Of the samples from 20 s on, those from 60 s on hold the end at 100 s.
  expect(early.etaInside(100)).toBeCloseTo(0.5, 1);
});
