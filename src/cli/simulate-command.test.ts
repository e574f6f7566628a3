// `foretoken simulate` as its user calls it, on the report of an iteration that takes some milliseconds.

import { beforeAll, expect, test } from "bun:test";
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { ran } from "../../test/suite/command.ts";
import { temporaryFolder } from "../../test/suite/temporary-folder.ts";
import { POLICY_NAMES, schedulerFor } from "../core/schedule/policies.ts";
import { loadCore } from "../core/wasm/load.ts";
import { Simulation } from "../tools/simulate/simulation.ts";

const scratch = temporaryFolder("simulate");
const trace = join(scratch, "report.json");

beforeAll(async () => {
  const simulation = new Simulation({
    groups: [40, 90, 300].map((length) => ({
      promptTokens: 9,
      lengths: [length, length + 30],
      atMs: 0,
    })),
    engines: [0, 1].map(() => ({
      slots: 2,
      kvTokens: 1024,
      times: {
        kvBytesPerToken: 1,
        stepMs: (_, rows) => 10 + rows,
        prefillMs: (tokens) => 0.1 * tokens,
        transferMs: () => 1,
      },
      speculation: null,
    })),
    tokensMax: 512,
    core: loadCore(),
    chunkTokens: 32,
    reportsTokens: true,
    schedulerFor: (parts) => schedulerFor("divided", parts),
    movesKv: true,
    isPaced: true,
  });
  await simulation.run();
  const { timeline } = simulation.rollout.meter;
  const runs = { "divided <b>": { timeline: timeline.call(simulation.rollout.meter) } };
  writeFileSync(trace, JSON.stringify({ runs }));
});

test("simulate: the table is labelled as simulated, says what was recorded and names every policy", async () => {
  const { status, out } = await ran("simulate", "--trace", trace);
  expect(status).toBe(0);
  expect(out).toStartWith("SIMULATED from divided <b>, recorded: ");
  expect(out).toContain("6 responses on 2 engines; a step takes ");
  for (const policy of POLICY_NAMES) expect(out).toContain(policy);
});

test("simulate: the report has the promised shape, and its page loads nothing and runs nothing", async () => {
  const report = join(scratch, "simulated.json");
  const args = ["--trace", trace, "--policies", "group,seer", "--quiet", "--report", report];
  const { status, out } = await ran("simulate", ...args);
  expect([status, out]).toEqual([0, ""]);
  const { simulated, recorded, runs } = JSON.parse(readFileSync(report, "utf8"));
  expect(simulated).toBe(true);
  expect(recorded).toMatchObject({ name: "divided <b>", responses: 6, engines: 2, unfinished: 0 });
  expect(Object.keys(runs)).toEqual(["group", "seer"]);
  for (const key of ["wall_s", "tail_s", "speedup", "idle_share", "preemptions", "migrations"]) {
    expect(runs.seer[key]).toBeNumber();
  }
  const page = readFileSync(join(scratch, "simulated.html"), "utf8");
  expect(page).toContain("Simulated");
  expect(page).toContain("divided &lt;b>");
  expect(page).not.toMatch(
    /(src|href)="(?!data:)|url\(|@import|<script(?! type="application\/json")/,
  );
});

test("simulate: a report of its own can be simulated again", async () => {
  const report = join(scratch, "again.json");
  await ran("simulate", "--trace", trace, "--policies", "seer", "--quiet", "--report", report);
  const { status, out } = await ran(
    "simulate",
    "--trace",
    report,
    "--policies",
    "divided",
    "--json",
  );
  expect(status).toBe(0);
  expect(JSON.parse(out).recorded).toMatchObject({ name: "seer", responses: 6 });
});

test("simulate: wrong input names what is wrong", async () => {
  const text = join(scratch, "text.json");
  writeFileSync(text, '{"runs":{"a":{}}}');
  const wrong: [string[], string][] = [
    [[], "--trace is missing"],
    [["--trace", join(scratch, "none.json")], "cannot read"],
    [["--trace", text], "runs.a.timeline is missing"],
    [["--trace", trace, "--report", trace], "the command reads it"],
  ];
  for (const [args, told] of wrong) {
    const { status, err } = await ran("simulate", ...args);
    expect([status, err]).toEqual([2, expect.stringContaining(told)]);
  }
});
