// `foretoken rollout`: where its prompts come from, and what it says of its runs.

import { afterEach, expect, spyOn, test } from "bun:test";
import { main } from "./cli.ts";
import { EXIT_USAGE } from "./output.ts";
import { speedups } from "./rollout-command.ts";
import type { RoundsReport } from "./rounds.ts";

const said = spyOn(console, "error").mockImplementation(() => {});
afterEach(() => said.mockClear());

for (const [args, problem] of [
  [["rollout"], "no prompts: name a file of JSON lines, or give --demo"],
  [["rollout", "--demo", "p.jsonl"], "--demo has its own prompts: leave out p.jsonl"],
  [["rollout", "p.jsonl"], "--out RESPONSES.jsonl is required"],
] as const) {
  test(`rollout: refuses ${args.join(" ")}`, async () => {
    expect(await main(args)).toBe(EXIT_USAGE);
    expect(said.mock.calls.flat().join("\n")).toContain(problem);
  });
}

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
