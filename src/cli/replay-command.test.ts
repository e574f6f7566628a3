import { afterAll, beforeAll, expect, spyOn, test } from "bun:test";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { gzipSync } from "node:zlib";
import { Command, CommanderError } from "commander";
import { AppError } from "../core/base/errors.ts";
import { type ReplayReport, replayCommand } from "./replay-command.ts";
import { readGroups } from "./replay-files.ts";

let folder = "";
let responsesPath = "";
let tracePath = "";

/** Two groups of three responses with phrases in common. */
const groups = [0, 1].map((g) => ({
  group: `g${g}`,
  prompt: [1, 2],
  responses: [0, 1, 2].map((r) =>
    Array.from({ length: 120 }, (_, i) => 10 + ((i * (r + 3) * (g + 1)) % 7) + (i % 5)),
  ),
}));

beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), "foretoken-replay-"));
  responsesPath = join(folder, "responses.jsonl");
  tracePath = join(folder, "trace.tokens.json.gz");
  const lines = groups.flatMap(({ group, prompt, responses }) =>
    responses.map((tokens, index) =>
      JSON.stringify({ group, index, prompt_token_ids: prompt, token_ids: tokens, text: "" }),
    ),
  );
  writeFileSync(responsesPath, `${lines.join("\n")}\n`);
  writeFileSync(tracePath, gzipSync(JSON.stringify({ name: "t", groups })));
});

afterAll(() => rmSync(folder, { recursive: true, force: true }));

interface Ran {
  readonly status: number | null;
  readonly out: string;
  readonly err: string;
}

async function run(...args: string[]): Promise<Ran> {
  let status: number | null = null;
  let err = "";
  const out = spyOn(console, "log").mockImplementation(() => {});
  const warned = spyOn(console, "error").mockImplementation(() => {});
  const command = replayCommand((value) => {
    status = value;
  }).exitOverride();
  command.configureOutput({
    writeErr: (text) => {
      err += text;
    },
  });
  const program = new Command("foretoken").addCommand(command);
  try {
    await program.parseAsync(["replay", ...args], { from: "user" });
    const printed = out.mock.calls.map((call) => call.join(" ")).join("\n");
    return { status, out: printed, err: warned.mock.calls.join("\n") };
  } catch (error) {
    if (error instanceof AppError)
      return { status, out: "", err: `${error.code}: ${error.message}` };
    if (error instanceof CommanderError) return { status, out: "", err };
    throw error;
  } finally {
    out.mockRestore();
    warned.mockRestore();
  }
}

test("replay: both formats of the same responses give the same report, but for names and time", async () => {
  const { out: ours } = await run(responsesPath, "--json", "--quiet");
  const { out: trace } = await run(tracePath, "--json", "--quiet");
  const figures = (text: string) =>
    (JSON.parse(text) as ReplayReport).results.map(({ file, us_per_token, ...rest }) => rest);
  expect(figures(ours)).toEqual(figures(trace));
  expect(figures(ours).map((result) => result.drafter)).toEqual(["self", "grouped", "tree"]);
});

test("replay: every combination is a line of the report, in the file and with --json on stdout", async () => {
  const report = join(folder, "new", "report.json");
  const lists = ["--siblings", "0,2", "--mode", "concurrent,complete", "--drafter", "self,tree"];
  const { status, out } = await run(responsesPath, ...lists, "--report", report, "--json");
  const { results } = JSON.parse(readFileSync(report, "utf8")) as ReplayReport;
  expect(status).toBe(0);
  expect(JSON.parse(out)).toEqual({ results });
  expect(results.map((result) => [result.mode, result.drafter, result.siblings])).toEqual([
    ["concurrent", "self", 0],
    ["concurrent", "self", 2],
    ["concurrent", "tree", 0],
    ["concurrent", "tree", 2],
    ["complete", "self", 0],
    ["complete", "self", 2],
    ["complete", "tree", 0],
    ["complete", "tree", 2],
  ]);
  for (const result of results) {
    for (const figure of [
      result.accepted_plus_1,
      result.drafted_per_step,
      result.accepted_per_drafted,
      result.us_per_token,
      ...(result.ci95 ?? [Number.NaN]),
    ]) {
      expect(Number.isFinite(figure)).toBe(true);
    }
  }
});

test("replay: the table has a line for each cell, with the calibration of the probabilities", async () => {
  const { out } = await run(responsesPath, "--limit", "1");
  expect(out).toContain("responses.jsonl: 1 groups, 3 responses, 360 tokens; budget 16, 8 live");
  expect(out.split("\n").filter((line) => line.startsWith("grouped"))).toHaveLength(2);
});

test("replay: what cannot be drafted at the wanted cost is said", async () => {
  const { err } = await run(responsesPath, "--drafter", "self", "--drafted-per-step", "16");
  expect(err).toContain("is as near 16 as it gets");
});

test("replay: --quiet prints nothing", async () => {
  expect(await run(responsesPath, "--quiet")).toEqual({ status: 0, out: "", err: "" });
});

test.each([
  [["--drafter", "self,best"], 'usage: --drafter names "best"; it is one of self, grouped, tree'],
  [["--mode", ""], "--mode is empty"],
  [["--mode", "both"], 'usage: --mode names "both"; it is one of concurrent, complete'],
  [["--siblings", "1,1"], 'usage: --siblings is "1,1"; it names one twice'],
  [["--siblings", "1,"], 'usage: --siblings names ""; it is a whole number'],
  [["--siblings", "-1"], 'usage: --siblings names "-1"; it is a whole number between 0 and 4095'],
  [["--live", "0"], "--live is 0; it must be between 1 and 1024"],
  [["--drafted-per-step", "17"], "--drafted-per-step is 17; it must be between 0.01 and 16"],
  [["--engine-steps", "8,20"], 'usage: --engine-steps is "8,20"; it is REQUESTS,MS,US'],
  [["--engine-steps", "8,x,1"], 'usage: --engine-steps is "8,x,1"'],
  [["--engine-steps", "8.5,20,1"], 'usage: --engine-steps is "8.5,20,1"'],
])("replay: %j is refused", async (flags, message) => {
  const { status, err } = await run(responsesPath, ...flags);
  expect(err).toContain(message);
  expect(status).toBeNull();
});

test("replay: a file that is not there, is no trace by name, or is cut is refused by name", async () => {
  const other = join(folder, "trace.txt");
  const cut = join(folder, "cut.json.gz");
  writeFileSync(cut, readFileSync(tracePath).subarray(0, 60));
  expect((await run(join(folder, "none.jsonl"))).err).toStartWith("usage: cannot read");
  expect((await run(other)).err).toContain("trace.txt: its name must end with .jsonl");
  expect((await run(cut)).err).toContain("cut.json.gz");
});

test("replay: a report that cannot be written is said, after the work", async () => {
  const { err } = await run(responsesPath, "--report", join(responsesPath, "x.json"), "--quiet");
  expect(err).toStartWith("output_failed: --report");
});

test("replay: a gzipped file of responses is read too", async () => {
  const path = join(folder, "responses.jsonl.gz");
  writeFileSync(path, gzipSync(readFileSync(responsesPath)));
  const names: string[] = [];
  for await (const group of readGroups(path)) names.push(group.name);
  expect(names).toEqual(["g0", "g1"]);
});

test("replay: says whether drafting would pay, and on an engine whose step times are given", async () => {
  const plain = await run(responsesPath, "--drafter", "grouped");
  expect(plain.out).toMatch(
    /verdict: drafting \(grouped, concurrent, 2 siblings\) pays where a step/,
  );
  const free = ["--engine-steps", "8,20,0"];
  const pays = await run(responsesPath, "--drafter", "grouped", ...free);
  expect(pays.out).toContain("speed-up");
  expect(pays.out).toMatch(/verdict: drafting pays: [1-9][0-9.]*x the decoding speed/);
  const dear = ["--engine-steps", "8,1,1000"];
  const lost = await run(responsesPath, "--drafter", "grouped", ...dear);
  expect(lost.out).toMatch(/verdict: drafting does not pay: 0\.[0-9]+x/);
});
