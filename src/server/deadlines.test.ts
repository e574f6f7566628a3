// Deadlines of groups and iterations: what they end, with which reason, and what they leave alone.

import { expect, test } from "bun:test";
import { Bed } from "../../test/suite/sidecar-bed.ts";
import { type DeadlineNotice, Deadlines } from "./deadlines.ts";
import type { Deadline } from "./sidecar.ts";

function bedWith() {
  const bed = new Bed({ workers: 2, lengthOf: ({ sampleIndex: i }) => (i === 0 ? 90 : 10) });
  const notices: DeadlineNotice[] = [];
  const deadlines = new Deadlines({
    sidecar: bed.sidecar,
    clock: bed.clock,
    every: () => () => {},
    ended: (notice) => notices.push(notice),
  });
  bed.sidecar.observe(deadlines.observer);
  const ask = (prompt: number, deadline?: Deadline) =>
    bed.generate([prompt], 3, deadline && { deadline });
  const run = async () => {
    while (bed.sidecar.rollout.unfinished > 0) {
      await bed.step();
      deadlines.look();
    }
  };
  return { bed, notices, ask, run };
}

const endsOf = (requests: ReturnType<ReturnType<typeof bedWith>["ask"]>) =>
  requests.map(({ response }) => response.finish);

test("deadlines: a group's ends its own responses, another runs to its end", async () => {
  const { notices, ask, run } = bedWith();
  const tight = ask(1, { group_tokens: 50 });
  const other = ask(2);
  await run();
  expect([endsOf(tight), endsOf(other)]).toEqual([
    ["deadline", "stop", "stop"],
    ["stop", "stop", "stop"],
  ]);
  expect(notices).toMatchObject([{ of: "group g1", requests: 1, savedS: null }]);
  expect(tight[0]?.response.length).toBeLessThan(90);
});

test("deadlines: an iteration's ends all that carry it, and the report says what it saved", async () => {
  const { bed, notices, ask, run } = bedWith();
  const all = [ask(1, { iteration_s: 0.2 }), ask(2, { iteration_s: 0.2 })];
  await run();
  expect(all.flatMap(endsOf).filter((end) => end === "deadline")).toHaveLength(2);
  expect(notices).toMatchObject([{ of: "iteration 1", requests: 2, seconds: 0.2 }]);
  const { deadline_requests: ended, aborted_requests: aborted } =
    bed.sidecar.rollout.meter.figures();
  expect([ended, aborted]).toEqual([2, 0]);
});

test("deadlines: the next iteration's time begins anew", async () => {
  const { bed, ask, run } = bedWith();
  for (const prompt of [1, 2]) {
    const requests = ask(prompt, { iteration_s: 60, group_s: 60 });
    await run();
    expect(endsOf(requests)).toEqual(["stop", "stop", "stop"]);
    bed.sidecar.rollout.meter.endIteration();
    bed.clock.advance(60_000);
  }
});
