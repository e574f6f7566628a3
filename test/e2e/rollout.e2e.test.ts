// The command-line tool end to end, on the bundled model.

import { expect, setDefaultTimeout, test } from "bun:test";
import { cpSync, existsSync, mkdirSync, readdirSync, readFileSync, symlinkSync } from "node:fs";
import { join } from "node:path";
import type { ReportFile, RunReport } from "../../src/core/rollout/report.ts";
import type { ChunkRow } from "../../src/core/rollout/timeline.ts";
import type { TraceFile } from "../../src/tools/trace/events.ts";
import type { ResponseLine } from "../faults/chaos/response-line.ts";
import { until } from "../faults/http-client.ts";
import { engineTest } from "../suite/engine-test.ts";
import { temporaryFolder } from "../suite/temporary-folder.ts";
import { ended, foretoken, PROMPTS, ROOT, spawn, start } from "./tool.ts";

setDefaultTimeout(300_000);

const scratch = temporaryFolder("rollout");

interface Line extends ResponseLine {
  readonly text: string;
  readonly weight_epoch: number;
}

function readLines(path: string): Line[] {
  const text = readFileSync(path, "utf8");
  if (text !== "" && !text.endsWith("\n")) throw new Error("the last line is torn");
  return text
    .split("\n")
    .slice(0, -1)
    .map((line) => JSON.parse(line) as Line);
}

function readReport(path: string): ReportFile {
  return JSON.parse(readFileSync(path, "utf8")) as ReportFile;
}

engineTest("verify: 32 requests over 3 workers equal themselves alone, bit for bit", async () => {
  const { status, stdout } = await foretoken(
    "verify",
    ...["--limit", "4", "--max-tokens", "128", "--json", "--quiet"],
  );
  const report = JSON.parse(stdout);
  expect(report.differences).toEqual([]);
  expect(report.requests).toBe(32);
  expect(report.equal_requests).toBe(32);
  // The check is of use only if all that could have changed a token did happen.
  expect(report.moved_requests).toBeGreaterThan(0);
  expect(report.full_stack.drafted_tokens).toBeGreaterThan(0);
  expect(report.full_stack.accepted_tokens).toBeGreaterThan(0);
  expect(report.full_stack.kv_pool.hits).toBeGreaterThan(0);
  expect(report.full_stack.lost_tokens + report.full_stack.duplicated_tokens).toBe(0);
  expect(status).toBe(0);
});

engineTest("rollout: compares policies on the same seeds and writes whole responses", async () => {
  const folder = join(scratch, "compared");
  const [out, reportPath] = [join(folder, "deep", "out.jsonl"), join(folder, "report.json")];
  const { status, stdout } = await foretoken(
    ...["rollout", PROMPTS, "--limit", "6", "--max-tokens", "400", "--kv-tokens", "1500"],
    ...["--compare", "group,divided,seer:off,seer", "--out", out, "--report", reportPath],
  );
  expect(status).toBe(0);
  expect(stdout).toContain("wall time");
  const { runs } = readReport(reportPath);
  expect(Object.keys(runs)).toEqual(["group", "divided", "seer:off", "seer"]);
  for (const run of Object.values(runs)) {
    expect(run.finished_requests).toBe(48);
    expect(run.lost_tokens).toBe(0);
    expect(run.duplicated_tokens).toBe(0);
    for (const worker of run.workers) {
      expect(worker.kv_tokens_peak).toBeLessThanOrEqual(worker.kv_tokens);
    }
  }
  expect(runs.group?.preemptions).toBeGreaterThan(0);
  expect(runs.seer?.preemptions).toBeLessThan(runs.group?.preemptions ?? 0);
  const lines = readLines(out);
  expect(new Set(lines.map((line) => `${line.group} ${line.index}`)).size).toBe(48);
  for (const line of lines) {
    expect(line.logprobs.length).toBe(line.token_ids.length);
    expect(Math.max(...line.logprobs)).toBeLessThanOrEqual(0);
    expect(line.chunks.reduce((sum, chunk) => sum + chunk.tokens, 0)).toBe(line.token_ids.length);
    expect(line.weight_epoch).toBe(0);
    if (line.finish_reason === "stop") expect(line.text).toEndWith("<|end|>");
    else expect(line.token_ids.length).toBe(400);
  }
  for (const [name, run] of Object.entries(runs)) expectTimeline(name, run);
  const tracePath = join(folder, "trace.json");
  const traced = await foretoken("trace", reportPath, "--out", tracePath);
  expect(traced).toMatchObject({ status: 0, stderr: "" });
  const { traceEvents } = JSON.parse(readFileSync(tracePath, "utf8")) as TraceFile;
  const count = (ph: string, name?: string) =>
    traceEvents.filter((event) => event.ph === ph && (name ?? event.name) === event.name).length;
  const all = Object.values(runs);
  const sum = (value: (run: RunReport) => number) => all.reduce((n, run) => n + value(run), 0);
  expect(traceEvents.filter(({ cat }) => cat === "chunk").length).toBe(sum((r) => r.chunks));
  expect([count("s", "move"), count("f", "move")]).toEqual([
    sum((run) => run.migrations),
    sum((run) => run.migrations),
  ]);
  expect(count("X", "tail")).toBe(4);
});

/** Every chunk of the run is in it, in order, with the tokens and drafts that the run counted. */
function expectTimeline(name: string, run: RunReport): void {
  const { chunk_columns: columns, responses, workers } = run.timeline;
  const rows = responses.flatMap(({ chunks }) => chunks);
  const at = (row: ChunkRow, column: string) => row[columns.indexOf(column)] as number;
  const sum = (column: string) => rows.reduce((total, row) => total + at(row, column), 0);
  expect([name, responses.length, rows.length]).toEqual([name, 48, run.chunks]);
  expect(sum("tokens")).toBe(run.output_tokens);
  expect(sum("drafted_tokens")).toBe(run.drafted_tokens);
  expect(sum("accepted_tokens")).toBe(run.accepted_tokens);
  expect(sum("preemptions")).toBe(run.preemptions);
  for (const { joined_ms, end_ms, chunks } of responses) {
    let lastMs = joined_ms;
    for (const row of chunks) {
      const [startMs, endMs] = [at(row, "start_ms"), at(row, "end_ms")];
      expect(startMs).toBeGreaterThanOrEqual(lastMs);
      expect(endMs).toBeGreaterThanOrEqual(startMs);
      lastMs = endMs;
    }
    expect(end_ms ?? 0).toBeGreaterThanOrEqual(lastMs);
    expect(end_ms ?? 0).toBeLessThanOrEqual(run.wall_s * 1000 + 1);
  }
  for (const { kv_tokens_used, kv_tokens, at_ms } of workers) {
    expect(at_ms.length).toBeGreaterThan(5);
    expect(Math.max(...kv_tokens_used)).toBeLessThanOrEqual(kv_tokens);
  }
}

engineTest("rollout: an interrupt keeps every finished response and exits with 130", async () => {
  const folder = join(scratch, "interrupted");
  const [out, reportPath] = [join(folder, "out.jsonl"), join(folder, "report.json")];
  const child = start([
    ...["rollout", PROMPTS, "--limit", "64", "--deterministic", "--max-tokens", "600"],
    ...["--policy", "divided", "--out", out, "--report", reportPath],
  ]);
  await until(() => existsSync(`${out}.${child.pid}.part`), "a finished group");
  expect(existsSync(out)).toBe(false);
  child.kill("SIGINT");
  const { status, stderr } = await ended(child);
  expect(status).toBe(130);
  expect(stderr).toContain("stopping");
  const lines = readLines(out);
  expect(lines.length).toBeGreaterThan(0);
  const run = readReport(reportPath).runs.divided;
  expect(run?.interrupted).toBe(true);
  // Groups of which only some responses are finished stand last, with those.
  expect(lines.length).toBe(run?.finished_requests ?? 0);
  expect(new Set(lines.map(({ group, index }) => `${group}/${index}`)).size).toBe(lines.length);
  for (const { finish_reason: reason } of lines) expect(["stop", "length"]).toContain(reason);
});

test("bad input: without the native library the error names what to install", async () => {
  const folder = join(scratch, "copy");
  for (const name of ["src", "build", "model", "native", "proto", "package.json"]) {
    cpSync(join(ROOT, name), join(folder, name), { recursive: true });
  }
  mkdirSync(join(folder, "node_modules"));
  for (const name of readdirSync(join(ROOT, "node_modules"))) {
    if (name === "@node-llama-cpp") continue;
    symlinkSync(join(ROOT, "node_modules", name), join(folder, "node_modules", name));
  }
  const child = spawn([
    ...[join(folder, "src", "main.ts"), "rollout", PROMPTS],
    ...["--out", join(folder, "out.jsonl")],
  ]);
  const { status, stderr } = await ended(child);
  expect(stderr).toContain("@node-llama-cpp/");
  expect(stderr).toContain("npm install");
  expect(stderr).toContain("native_library_missing");
  expect(status).toBe(1);
});
