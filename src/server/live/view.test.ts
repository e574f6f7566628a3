// What the page is shown besides the stream, over a sidecar with simulated workers.

import { expect, test } from "bun:test";
import { liveBed } from "../../../test/suite/live-bed.ts";
import { weightEpoch } from "../../core/base/ids.ts";
import { ROLLOUT_FIGURES, sumsOf, WORKER_FIGURES } from "../../core/rollout/figures.ts";
import { ITERATIONS_KEPT } from "./view.ts";

const SUMMARY = {
  weightEpoch: 0,
  seconds: 10,
  tokensPerS: 4,
  tailS: 2,
  unfinished: 0,
  figures: {
    ...sumsOf(ROLLOUT_FIGURES, []),
    ...sumsOf(WORKER_FIGURES, []),
    requests: 4,
    output_tokens: 40,
  },
};

test("live: a pause is reported as it begins, while requests wait for it, and as it ends", async () => {
  const { bed, view, changes, weights, answer } = liveBed();
  view.look();
  expect(changes).toEqual([]);
  void bed.sidecar.rollout.pause("keep");
  bed.generate([1], 2);
  view.look();
  expect(changes).toEqual([{ state: "paused", waiting: 2 }]);
  expect(answer()).toMatchObject({
    state: "paused",
    reason: "paused with mode keep; POST /resume ends it",
  });
  bed.clock.advance(61_000);
  view.look();
  expect(changes).toHaveLength(2);
  expect(answer()).toMatchObject({ state: "paused", state_s: 61 });
  weights.isAsleep = true;
  expect(answer()).toMatchObject({ state: "sleeping", state_s: 0 });
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
  const { view, members } = liveBed();
  for (const member of members) member.state = "fenced";
  expect(view.state).toEqual({ state: "no_worker", reason: "vllm-0 is fenced, vllm-1 is fenced" });
});

test("live: a tool that never returns holds up no other session, and its own is named until it is forgotten", async () => {
  const { bed, view } = liveBed({ lengthOf: () => 60 });
  const root = Array.from({ length: 60 }, (_, i) => i + 1);
  const turn = (session: string, prompt: readonly number[]) => {
    const tool = prompt.length > 60 ? "build" : null;
    const [request] = bed.generate(prompt, 1, { session, tool });
    if (request === undefined) throw new Error("one request");
    return request;
  };
  // Their last turns need more KV than there is.
  let last = Array.from({ length: 80 }, (_, i) => turn(`s${i}`, root));
  for (let i = 0; i < 4; i += 1) {
    await bed.finish();
    last = last.map((one, j) =>
      j === 7 && i > 1
        ? one
        : turn(`s${j}`, [...one.spec.prompt, ...one.response.tokens(), 900, 901]),
    );
  }
  await bed.finish();
  expect(last.map(({ turn }) => turn)).toEqual(last.map((_, j) => (j === 7 ? 2 : 4)));
  bed.clock.advance(5_000);
  const { count, longest } = view.waiting().sessions;
  expect(count).toBe(80);
  expect(longest[0]).toMatchObject({ session: "s7", turns: 3, tool: "build" });
  expect(longest[0]?.since_s).toBeGreaterThan(5);
  bed.clock.advance(600_000);
  turn("other", [1]);
  await bed.finish();
  expect(view.waiting().sessions.count).toBe(1);
});

test("live: whom the iteration waits for, and why", async () => {
  const { bed, view, answer } = liveBed({ lengthOf: ({ sampleIndex: i }) => (i === 3 ? 90 : 10) });
  bed.generate([1], 4);
  while (bed.sidecar.rollout.unfinished > 1) await bed.step();
  for (let i = 0; i < 5; i += 1) await bed.step();
  view.look();
  answer();
  bed.clock.advance(1000);
  const [one, ...others] = answer().longest as { reason: string; siblings_median: number }[];
  expect(others).toEqual([]);
  expect(one?.siblings_median).toBe(10);
  expect(one?.reason).toMatch(/^it is [0-9.]+ times its siblings' median$/);
});

test("live: the picture is of the iteration as it stands, and kept with those that are over", async () => {
  const { bed, view } = liveBed({ lengthOf: ({ sampleIndex: i }) => (i === 3 ? 90 : 10) });
  expect(() => view.picture(1)).toThrow("iteration 1 has not begun");
  bed.generate([1], 4);
  while (bed.sidecar.rollout.unfinished > 1) await bed.step();
  const running = view.picture(null);
  expect(running).toContain(">3 of 4 responses: ");
  expect(view.picture(1)).toBe(running);
  await bed.finish();
  expect(view.picture(null)).toContain(">4 responses: ");
  bed.sidecar.rollout.meter.endIteration();
  view.iterationEnded(SUMMARY);
  bed.generate([2], 1);
  await bed.step();
  expect(view.picture(null)).toContain(">iteration 2</tspan>");
  expect(view.picture(1)).toContain(">iteration 1</tspan>");
  await bed.finish();
});

test("live: a picture that took long is shown again for a while, but not of another iteration", async () => {
  let drawnMs = 0;
  const { bed, view } = liveBed({ lengthOf: () => 10, laterMs: () => (drawnMs += 100) });
  bed.generate([1], 1);
  await bed.step();
  const running = view.picture(null);
  expect(view.picture(null)).toBe(running);
  await bed.finish();
  bed.sidecar.rollout.meter.endIteration();
  view.iterationEnded(SUMMARY);
  bed.generate([2], 1);
  await bed.step();
  expect(view.picture(null)).toContain(">iteration 2</tspan>");
  await bed.finish();
});

test("live: of the last iterations 50 are kept", async () => {
  const { bed, view, answer } = liveBed({ lengthOf: () => 1 });
  for (let i = 0; i < ITERATIONS_KEPT + 3; i += 1) {
    bed.generate([1], 1);
    await bed.finish();
    bed.sidecar.rollout.meter.endIteration();
    view.iterationEnded({ ...SUMMARY, weightEpoch: i });
  }
  const { iterations } = answer() as unknown as { iterations: object[] };
  expect(iterations).toHaveLength(ITERATIONS_KEPT);
  expect(iterations.at(-1)).toMatchObject({ number: 53, weight_epoch: 52, wall_s: 10, tail_s: 2 });
  expect(() => view.earlier(3)).toThrow("iteration 3 is not kept");
  expect(view.earlier(4)).toMatchObject({ number: 4, weight_epoch: 3 });
});

test("live: an iteration that ended names what it waited for", async () => {
  const lengthOf = ({ sampleIndex: i }: { sampleIndex: number }) => (i === 3 ? 90 : 10);
  const { bed, view } = liveBed({ lengthOf });
  bed.generate([1], 4);
  view.look();
  expect(view.iteration).toBe(1);
  await bed.finish();
  bed.sidecar.advance(weightEpoch(1));
  const current = view.earlier(1) as { groups: object[] };
  expect(current.groups).toMatchObject([{ lengths: [10, 10, 10, 90] }]);
  bed.sidecar.rollout.meter.endIteration();
  view.iterationEnded(SUMMARY);
  expect(view.iteration).toBe(1);
  const waited_for = [
    {
      request: 3,
      index: 3,
      length: 90,
      siblings_median: 10,
      before_last_s: 0,
      reason: expect.stringMatching(/^it is 9.0 times its siblings' median$/),
    },
    {},
    {},
    {},
  ];
  const engines = [{ name: expect.any(String) }, {}];
  const figure = { name: "iteration 1", engines, longest: { size: 4 } };
  const ended = { iteration: 1, wall_s: 10, figure, waited_for };
  // Bun writes the pattern's matchers into what it compares.
  expect(structuredClone(view.earlier(1))).toMatchObject({
    ...ended,
    groups: [{ requests: [0, 1, 2, 3] }],
  });
  expect(view.answer()).toMatchObject({ iteration: 1, waited_for });
  expect(view.request(3)?.response.length).toBe(90);
  expect(() => view.earlier(2)).toThrow("iteration 2 has not begun: the current one is 1");
  bed.generate([1], 1);
  expect(view.iteration).toBe(2);
  await bed.finish();
});

test("live: the groups of an iteration are those that its figures count, complete or not", async () => {
  const { bed, view } = liveBed();
  const groupsOf = (number: number) => {
    const { groups } = view.earlier(number) as { groups: { group: string }[] };
    return groups.map(({ group }) => group);
  };
  bed.generate([1], 2);
  bed.generate([2], 2);
  await bed.finish();
  const { figures, progress } = view.answer();
  const counted = figures.filter(({ key }) => key.endsWith("groups")).map(({ value }) => value);
  expect(counted).toEqual([2, 2]);
  expect(progress).toMatchObject({ groups: 2, groups_done: 2, requests: 4, requests_done: 4 });
  expect(groupsOf(1)).toEqual(["g1", "g2"]);
  bed.sidecar.rollout.meter.endIteration();
  view.iterationEnded(SUMMARY);
  bed.generate([3], 1);
  await bed.finish();
  // An update closes all groups: those of the first iteration stay that one's.
  bed.sidecar.advance(weightEpoch(1));
  expect([groupsOf(1), groupsOf(2)]).toEqual([["g1", "g2"], ["g3"]]);
});

test("live: complete groups are kept up to a bound, the oldest dropped first", async () => {
  const { bed, view, completed } = liveBed({ completedBytesMax: 20_000 });
  for (let epoch = 1; epoch <= 8; epoch += 1) {
    bed.generate([epoch], 2);
    await bed.finish();
    bed.sidecar.advance(weightEpoch(epoch));
    const { bytes, bytesMax, count } = completed.kept;
    expect(bytes).toBeLessThanOrEqual(bytesMax);
    expect(count).toBeGreaterThan(0);
  }
  expect(view.request(0)).toBeNull();
  expect(view.request(15)?.response.length).toBe(40);
  const none = liveBed({ completedBytesMax: 0 });
  none.bed.generate([1], 2);
  await none.bed.finish();
  none.bed.sidecar.advance(weightEpoch(1));
  expect(none.completed.kept).toEqual({ bytes: 0, bytesMax: 0, count: 0 });
});
