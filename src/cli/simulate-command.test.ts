// `foretoken simulate` as its user calls it, on a workload that takes some milliseconds.

import { expect, spyOn, test } from "bun:test";
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { temporaryFolder } from "../../test/suite/temporary-folder.ts";
import { WORKLOADS } from "../tools/simulate/workload.ts";
import { main } from "./cli.ts";
import { withTrace } from "./simulate-workload.ts";

const scratch = temporaryFolder("simulate");

function workload(name: string, fields: object): string {
  const path = join(scratch, name);
  writeFileSync(path, JSON.stringify(fields));
  return path;
}

const small = workload("small.json", { like: "moonlight", instances: 2, groups: 10 });

async function run(...args: string[]): Promise<{ status: number; out: string; err: string }> {
  const out = spyOn(console, "log").mockImplementation(() => {});
  const err = spyOn(console, "error").mockImplementation(() => {});
  try {
    const status = await main(["simulate", ...args]);
    const textOf = (spy: typeof out) => spy.mock.calls.map((call) => call.join(" ")).join("\n");
    return { status, out: textOf(out), err: textOf(err) };
  } finally {
    out.mockRestore();
    err.mockRestore();
  }
}

test("simulate: the table is labelled as simulated, and names every system", async () => {
  const { status, out } = await run("--workload", small, "--seeds", "2");
  expect(status).toBe(0);
  expect(out).toStartWith("SIMULATED");
  for (const system of ["verl", "streamrl-oracle", "partial-rollout", "oracle", "foretoken"]) {
    expect(out).toContain(system);
  }
  expect(out).toContain("lower bound");
});

test("simulate: the report has the promised shape, and the page loads nothing", async () => {
  const report = join(scratch, "report.json");
  const html = join(scratch, "report.html");
  const { status } = await run("--workload", small, "--seeds", "2", "--quiet", "--report", report);
  expect(status).toBe(0);
  const parsed = JSON.parse(readFileSync(report, "utf8"));
  expect(parsed.simulated).toBe(true);
  const seer = parsed.workloads[small].systems.seer;
  for (const key of ["wall_s", "tail_s", "preemptions", "output_tokens_per_s"]) {
    expect(seer[key]).toBeNumber();
  }
  expect(seer.speedup_over_verl).toBeGreaterThan(0);
  expect(seer.ci95).toHaveLength(2);
  expect(seer.published_speedup).toBeNull();
  expect(parsed.workloads[small].lower_bound_s).toBeLessThan(seer.wall_s);
  const page = readFileSync(html, "utf8");
  expect(page).toContain("Simulated");
  expect(page).not.toMatch(
    /(src|href)="(?!data:)|url\(|@import|<script(?! type="application\/json")/,
  );
});

test("simulate: own drafts are foretoken's alone, and each system has chunks of its own", async () => {
  const both = ["--workload", small, "--seeds", "1", "--systems", "verl,seer,foretoken", "--json"];
  const systemsOf = async (...args: string[]) => {
    const { out } = await run(...both, ...args);
    return JSON.parse(out).workloads[small].systems;
  };
  const own = await systemsOf("--draft", "own");
  expect([own.verl.draft, own.seer.draft, own.foretoken.draft]).toEqual([
    "vanilla",
    "grouped",
    "own",
  ]);
  const byDefault = await systemsOf();
  const long = await systemsOf("--chunk-tokens", "8192");
  expect(long.seer).toEqual(byDefault.seer);
  expect(long.foretoken).not.toEqual(byDefault.foretoken);
});

test("simulate: lengths are taken from recorded responses", async () => {
  const path = join(scratch, "responses.jsonl");
  const lines = [5, 9, 30].map((length, index) =>
    JSON.stringify({ group: "g", index, token_ids: Array.from({ length }, () => 1) }),
  );
  writeFileSync(path, `${lines.join("\n")}\n`);
  const { status, out } = await run(
    ...["--workload", small, "--lengths", path, "--systems", "seer,partial-rollout", "--json"],
  );
  expect(status).toBe(0);
  const [only] = Object.values(JSON.parse(out).workloads) as { requests: number }[];
  expect(only?.requests).toBe(3);
});

test("simulate: groups and lengths are taken from a trace of sessions", async () => {
  const path = join(import.meta.dir, "..", "..", "examples", "traces", "misguided.jsonl");
  const { status, out } = await run(
    ...["--workload", "moonlight", "--trace", path, "--systems", "seer", "--json"],
  );
  expect(status).toBe(0);
  const [only] = Object.values(JSON.parse(out).workloads) as { requests: number }[];
  expect(only?.requests).toBe(96);
  // Mooncake's lines: requests with the same blocks are one group's.
  const mooncake = join(scratch, "mooncake.jsonl");
  const line = (hash_ids: number[]) =>
    `${JSON.stringify({ timestamp: 0, input_length: 5, output_length: 9, hash_ids })}\n`;
  writeFileSync(mooncake, [[1], [1], [2]].map(line).join(""));
  const { lengths, promptTokens } = await withTrace(WORKLOADS.moonlight, mooncake);
  expect([lengths, promptTokens]).toEqual([[[9, 9], [9]], 5]);
});

test("simulate: wrong input names what is wrong", async () => {
  const wrong: [string[], string][] = [
    [["--workload", "nowhere"], "--workload"],
    [["--systems", "verl,best"], '"best"'],
    [["--trace", workload("t.jsonl", { group: 1, prompt_len: 5, out_lens: [] })], "out_lens"],
    [["--systems", "verl,verl"], "twice"],
    [["--workload", workload("a.json", { like: "moonlight", groups: 0 })], "groups"],
    [["--workload", workload("b.json", { like: "moonlight", gruops: 1 })], "gruops"],
    [
      [
        "--workload",
        workload("d.json", { like: "moonlight", tokens_max: 1_048_576, prompt_tokens: 1_048_576 }),
      ],
      "tokens_max",
    ],
    [["--workload", workload("e.json", { like: "moonlight", gpu: TINY_GPU })], "no memory left"],
    [
      ["--workload", workload("f.json", { like: "moonlight", model: { layers: 2 } })],
      "model.hidden",
    ],
    [["--workload", workload("g.json", { groups: 2 })], "like is missing"],
    [["--workload", workload("c.json", { like: "kimi-k2", tokens_mean: 99_999 })], "tokens_mean"],
  ];
  for (const [args, told] of wrong) {
    const { status, err } = await run(...args);
    expect(status).toBe(2);
    expect(err).toContain(told);
  }
});

const TINY_GPU = { memory_gib: 8, hbm_gb_per_s: 300, bf16_tflops: 50, nvlink_gb_per_s: 10 };
