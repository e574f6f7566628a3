import { beforeAll, expect, test } from "bun:test";
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { gzipSync } from "node:zlib";
import { ran } from "../../test/suite/command.ts";
import { temporaryFolder } from "../../test/suite/temporary-folder.ts";
import { EXIT_USAGE } from "./output.ts";
import type { ReplayReport } from "./replay-command.ts";

const folder = temporaryFolder("replay");
const responsesPath = join(folder, "responses.jsonl");
const tracePath = join(folder, "trace.tokens.json.gz");

/** Two groups of three responses with phrases in common. */
const groups = [0, 1].map((g) => ({
  group: `g${g}`,
  prompt: [1, 2],
  responses: [0, 1, 2].map((r) =>
    Array.from({ length: 120 }, (_, i) => 10 + ((i * (r + 3) * (g + 1)) % 7) + (i % 5)),
  ),
}));

beforeAll(() => {
  const lines = groups.flatMap(({ group, prompt, responses }) =>
    responses.map((tokens, index) =>
      JSON.stringify({ group, index, prompt_token_ids: prompt, token_ids: tokens, text: "" }),
    ),
  );
  writeFileSync(responsesPath, `${lines.join("\n")}\n`);
  writeFileSync(tracePath, gzipSync(JSON.stringify({ name: "t", groups })));
});

const run = (...args: string[]) => ran("replay", ...args);

test("replay: both formats of the same responses give the same report, but for names and time", async () => {
  const { out: ours } = await run(responsesPath, "--json", "--quiet");
  const { out: trace } = await run(tracePath, "--json", "--quiet");
  const figures = (text: string) =>
    (JSON.parse(text) as ReplayReport).results.map(({ file, us_per_token, ...rest }) => rest);
  expect(figures(ours)).toEqual(figures(trace));
  expect(figures(ours).map((result) => result.drafter)).toEqual(["self", "grouped", "history"]);
});

test.each([
  [["--drafter", "magic"], '--drafter is "magic"; it is one of self, grouped, history'],
  [["--engine-steps", "8,20"], '--engine-steps is "8,20"; it is REQUESTS,MS,US'],
  [["--engine-steps", "8,x,1"], '--engine-steps is "8,x,1"'],
  [["--engine-steps", "8.5,20,1"], '--engine-steps is "8.5,20,1"'],
  [["--head", "0.7,0"], '--head is "0.7,0"; it is 1 to 15 shares'],
  [["--head", "0.7,1.1"], '--head is "0.7,1.1"'],
  [["--head", "x"], '--head is "x"'],
  [["--head", Array(16).fill("1").join()], '--head is "1,1,1'],
])("replay: %j is refused", async (flags, message) => {
  const { status, err } = await run(responsesPath, ...flags);
  expect(err).toContain(message);
  expect(status).toBe(EXIT_USAGE);
});

test("replay: a file that is not there, is no trace by name, or is cut is refused by name", async () => {
  const other = join(folder, "trace.txt");
  const cut = join(folder, "cut.json.gz");
  writeFileSync(cut, readFileSync(tracePath).subarray(0, 60));
  expect((await run(join(folder, "none.jsonl"))).err).toContain("cannot read");
  expect((await run(other)).err).toContain("trace.txt: its name must end with .jsonl");
  expect((await run(cut)).err).toContain("cut.json.gz");
});

test("replay: says whether drafting would pay, and on an engine whose step times are given", async () => {
  const plain = await run(responsesPath);
  expect(plain.out).toMatch(/verdict: drafting \((self|grouped)\) pays where a step/);
  const pays = await run(responsesPath, "--engine-steps", "8,20,0");
  expect(pays.out).toContain("speed-up");
  expect(pays.out).toMatch(/verdict: drafting pays: [1-9][0-9.]*x the decoding speed/);
  const lost = await run(responsesPath, "--engine-steps", "8,1,1000");
  expect(lost.out).toMatch(/verdict: drafting does not pay: 0\.[0-9]+x/);
});

test("replay --head: head, siblings and both by K, and the gain of both over the better one", async () => {
  const report = join(folder, "head.json");
  const { out } = await run(responsesPath, "--head", "0.7,0.6,0.5", "--report", report);
  const { results } = JSON.parse(readFileSync(report, "utf8")) as ReplayReport;
  const rows = results.map(({ head, budget, tokens }) => `${head?.system} ${budget} ${tokens}`);
  const systems = ["head", "table", "both"];
  expect(rows).toEqual([1, 3, 7, 15].flatMap((k) => systems.map((name) => `${name} ${k} 720`)));
  const [alone, table, both] = results.slice(6, 9).map((result) => result.accepted_plus_1);
  expect(both).toBeGreaterThan(Math.max(alone ?? 0, table ?? 0));
  const gain = (both ?? 0) / Math.max(alone ?? 0, table ?? 0);
  const row = out.split("\n").find((line) => line.startsWith("7 "));
  expect(row).toContain(`${both?.toFixed(3)}`);
  expect(row?.trim()).toEndWith(`${gain.toFixed(2)}x`);
});
