// Mistakes of a first day, on the command line: each ends with status 2 and a sentence that names what was given, and
// what is wrong with it.

import { expect, test } from "bun:test";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { ran } from "../../test/suite/command.ts";
import { temporaryFolder } from "../../test/suite/temporary-folder.ts";
import { EXIT_USAGE } from "./output.ts";

const FOLDER = temporaryFolder("mistakes");
const LINE = join(FOLDER, "line.json");
writeFileSync(LINE, '{"id": "a", "prompt": "x"}\n');
const NONE = join(FOLDER, "none.jsonl");
const OLD = join(FOLDER, "old.json");
writeFileSync(OLD, '{"runs": {"seer": {"wall_s": 1, "tail_s": 0}}}');
/** A process has one kind of llama.cpp kernels: that of the other tests here. */
const OUT = ["--out", join(FOLDER, "out.jsonl"), "--deterministic"];

for (const [name, args, problem] of [
  ["absent prompts", ["rollout", NONE, ...OUT], `${NONE}: there is no such file`],
  ["a folder of prompts", ["rollout", FOLDER, ...OUT], `${FOLDER}: is a folder, not a file`],
  ["an absent model", ["rollout", LINE, ...OUT, "--model", "none.gguf"], "there is no such file"],
  ["prompts as output", ["rollout", LINE, "--out", LINE], `--out ${LINE}: the command reads it`],
  ["a report as output", ["trace", LINE, "--out", LINE], `--out ${LINE}: the command reads it`],
  ["traces as output", ["replay", LINE, "--report", LINE], `${LINE}: the command reads it`],
  ["a trace as output", ["simulate", "--trace", LINE, "--report", LINE], "the command reads it"],
  ["no model", ["rollout", LINE, ...OUT, "--model", LINE], `${LINE}: not a GGUF file`],
  ["absent responses", ["replay", NONE], `cannot read ${NONE}: there is no such file`],
  ["an absent report", ["trace", NONE], `${NONE}: there is no such file`],
  ["an older report", ["trace", OLD], "runs.seer.timeline is missing: a report is what"],
  ["no report", ["trace", LINE], `${LINE}: runs is missing: a report is what`],
  ["an absent configuration", ["serve", "--config", NONE], `${NONE}: there is no such file`],
  ["no servers", ["verify", "--vllm"], "--vllm http://gpu-0:8000,http://gpu-1:8000"],
  ["no engines", ["rollout", LINE, ...OUT, "--llama", "0"], "--llama is 0; at least 1 engine"],
  ["no engines to compare", ["verify", "--llama", "0"], "--llama is 0; at least 1 engine"],
  ["neither prompts nor --demo", ["rollout"], "no prompts: name a file of JSON lines, or give"],
  ["both", ["rollout", "--demo", NONE], `--demo has its own prompts: leave out ${NONE}`],
  ["no output", ["rollout", NONE], "--out RESPONSES.jsonl is required"],
  [
    "an unknown policy",
    ["simulate", "--policies", "vllm"],
    'is "vllm"; it is one of group, divided',
  ],
  [
    "drafts of no kind",
    ["rollout", "--compare", "seer:much"],
    '--compare is "seer:much"; it is one',
  ],
  ["a policy twice", ["rollout", "--compare", "seer,group,seer"], "--compare has seer twice"],
] as const) {
  test(`mistakes: ${name}`, async () => {
    const { status, err } = await ran(...args);
    expect([status, err]).toEqual([EXIT_USAGE, expect.stringContaining(problem)]);
  });
}

test("mistakes: a misspelt name in the environment", async () => {
  process.env.FORETOKEN_KVTOKEN = "64";
  const { status, err } = await ran("trace", NONE).finally(() => {
    delete process.env.FORETOKEN_KVTOKEN;
  });
  const problem =
    "FORETOKEN_KVTOKEN in the environment is not known; did you mean FORETOKEN_KV_TOKENS?";
  expect([status, err]).toEqual([EXIT_USAGE, expect.stringContaining(problem)]);
});

test("mistakes: a port in use", async () => {
  const taken = Bun.serve({ port: 0, hostname: "127.0.0.1", fetch: () => new Response() });
  try {
    const { status, err } = await ran("serve", "--port", String(taken.port));
    const problem = `127.0.0.1:${taken.port}: the port is in use by another process`;
    expect([status, err]).toEqual([EXIT_USAGE, expect.stringContaining(problem)]);
  } finally {
    await taken.stop(true);
  }
});
