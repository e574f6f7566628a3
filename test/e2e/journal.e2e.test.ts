// `rollout --journal DIR`: a process that is killed loses nothing but what it generated since its last write.

import { expect, setDefaultTimeout } from "bun:test";
import { readFileSync, statSync, truncateSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { formatCount } from "../../src/cli/format.ts";
import type { ReportFile } from "../../src/core/rollout/report.ts";
import { journalsIn } from "../../src/host/journal-file.ts";
import { keyOf, linesIn } from "../faults/chaos/response-line.ts";
import { until } from "../faults/http-client.ts";
import { ToolProcess } from "../faults/process.ts";
import { engineTest } from "../suite/engine-test.ts";
import { temporaryFolder } from "../suite/temporary-folder.ts";
import { untilStopped } from "./stopping-itself.ts";
import { ended, foretoken, MAIN, PROMPTS, ROOT, spawn } from "./tool.ts";

setDefaultTimeout(300_000);

const folder = temporaryFolder("e2e");
/** The journal of the one run. */
function fileOf(): string {
  const [file = "none", ...more] = journalsIn(join(folder, "journal"));
  expect(more).toEqual([]);
  return file;
}
/** Arguments of the runtime for a process that stops itself. */
const STOPPING = ["--preload", join(import.meta.dir, "stopping-itself.ts"), MAIN];

function job(out: string, ...more: string[]): string[] {
  const size = ["--limit", "3", "--group-size", "3", "--max-tokens", "400", "--chunk-tokens", "32"];
  const output = ["--out", join(folder, out), "--report", join(folder, `${out}.json`), "--quiet"];
  return ["rollout", PROMPTS, ...size, "--deterministic", ...output, ...more];
}

/** Tokens, logprobs and reason of every response by name. */
function responses(out: string): Map<string, unknown> {
  const lines = linesIn(readFileSync(join(folder, out), "utf8"));
  const entries = lines.map((line): [string, unknown] => {
    const { token_ids, logprobs, finish_reason } = line;
    return [keyOf(line), { token_ids, logprobs, finish_reason }];
  });
  expect(new Set(lines.map(keyOf)).size).toBe(lines.length);
  return new Map(entries.toSorted(([a], [b]) => (a < b ? -1 : 1)));
}

function tokensOf(out: string): { resumed: number; generated: number } {
  const report = JSON.parse(readFileSync(join(folder, `${out}.json`), "utf8")) as ReportFile;
  const run = Object.values(report.runs)[0];
  return { resumed: run?.resumed_tokens ?? -1, generated: run?.output_tokens ?? -1 };
}

const journal = ["--journal", join(folder, "journal")];

engineTest(
  "rollout --journal: kill -9, a torn end, and every response comes out bit for bit",
  async () => {
    expect((await foretoken(...job("whole"))).status).toBe(0);
    const whole = responses("whole");
    const { generated: all } = tokensOf("whole");

    // The file of the weights has 33 kB.
    const env = { STOP_FOLDER: join(folder, "journal"), STOP_BYTES: "41000" };
    const killed = spawn([...STOPPING, ...job("resumed", ...journal)], env);
    await untilStopped(killed.pid);
    const second = await foretoken(...job("other", ...journal));
    expect(second.stderr).toContain(`process ${killed.pid} uses it`);
    killed.kill("SIGKILL");
    await ended(killed);
    const file = fileOf();
    truncateSync(file, statSync(file).size - 5);

    expect((await foretoken(...job("resumed", ...journal))).stderr).toBe("");
    expect(responses("resumed")).toEqual(whole);
    const { resumed, generated } = tokensOf("resumed");
    expect(resumed + generated).toBe(all);
    expect(resumed).toBeGreaterThan(0);
    expect(generated).toBeGreaterThan(0);

    // Again: nothing is left to generate.
    const loud = job("again", ...journal).filter((argument) => argument !== "--quiet");
    const again = await foretoken(...loud);
    expect(responses("again")).toEqual(whole);
    expect(tokensOf("again")).toEqual({ resumed: all, generated: 0 });
    // It says so, and the table's total is of the file.
    const total = formatCount(all);
    expect(again.stderr).toContain(`9 of 9 responses had ended, ${total} tokens are kept`);
    expect(again.stdout).toMatch(
      new RegExp(`output tokens +${total}\\s+from the journal +${total}`),
    );
  },
);

engineTest(
  "rollout --journal: another run's journal and a damaged one are refused by name",
  async () => {
    const made = readFileSync(join(folder, "whole"), "utf8");
    const other = await foretoken(...job("whole", ...journal, "--seed", "9"));
    expect(other.status).toBe(2);
    expect(other.stderr).toContain("holds another run");
    // A refused command changes no output of an earlier one.
    expect(readFileSync(join(folder, "whole"), "utf8")).toBe(made);
    const file = fileOf();
    const bytes = readFileSync(file);
    bytes[200] = (bytes[200] ?? 0) ^ 1;
    writeFileSync(file, bytes);
    const damaged = await foretoken(...job("other", ...journal));
    expect(damaged.status).toBe(1);
    expect(damaged.stderr).toMatch(/\.journal: record \d+ at byte \d+ is damaged/);
  },
);

/** Tokens of each of three responses. */
const LONG = 300;
const SERVE = ["serve", "--llama", "2", "--deterministic", "--chunk-tokens", "32", "--log", "off"];

async function serving(more: string[] = [], env = {}): Promise<ToolProcess> {
  const program = [process.execPath, ...STOPPING];
  const one = new ToolProcess([...SERVE, "--port", "0", ...more], { program, env });
  await one.listens();
  await until(() => one.http.isServing(), "its engines");
  return one;
}

const generated = ({ http }: ToolProcess) => http.metric("vllm:generation_tokens_total");

engineTest(
  "serve --journal: kill -9, and a request with an id is adopted, bit for bit and not generated anew",
  async () => {
    const kept = join(folder, "requests");
    const ask = async ({ http }: ToolProcess, id: string, fields: object = {}) => {
      const body = { prompt: [5, 6, 7, 8], max_tokens: LONG, seed: 3, n: 3, request_id: id };
      const more = { temperature: 1, ignore_eos: true, logprobs: 1, ...fields };
      const answer = await http.post("/v1/completions", { ...body, ...more });
      const { choices } = (await answer.json()) as { choices?: object[] };
      return { status: answer.status, choices };
    };

    // The file of the weights has 33 kB; the two short ones take 9, all of them 30.
    const env = { STOP_FOLDER: kept, STOP_BYTES: "49000" };
    const first = await serving(["--journal", kept], env);
    const short = await ask(first, "short", { max_tokens: 20 });
    // No seed: only its journal has the random numbers.
    const drawn = await ask(first, "drawn", { max_tokens: 20, seed: null });
    const lost = ask(first, "long").catch(() => null);
    await untilStopped(first.pid);
    await first.kill();
    expect(await lost).toBe(null);

    const second = await serving(["--journal", kept]);
    expect(await ask(second, "short", { max_tokens: 20 })).toEqual(short);
    expect(await ask(second, "drawn", { max_tokens: 20, seed: null })).toEqual(drawn);
    expect(await generated(second)).toBe(0);
    const long = await ask(second, "long");
    expect(await generated(second)).toBeLessThan(3 * LONG);
    // Another body under a name that was used: a request of its own.
    const other = await ask(second, "drawn", { max_tokens: 21, seed: 4 });
    second.signal("SIGTERM");
    await second.exited;

    const third = await serving();
    expect(await ask(third, "long")).toEqual(long);
    expect(await ask(third, "other", { max_tokens: 21, seed: 4 })).toEqual(other);
    await third.kill();
  },
);

engineTest(
  "serve --journal: the last weights go on while nothing runs, after kill -9 and after SIGTERM",
  async () => {
    const more = ["--journal", join(folder, "updated")];
    const held = async ({ http }: ToolProcess) => {
      const weights = (await http.workers()).map((worker) => worker.weights);
      return { weights, info: await http.json("/weight_info") };
    };
    let server = await serving(more);
    const model = join(ROOT, "model", "foretoken-3m-f16.gguf");
    const update = { model_path: model, weight_version: "step-1" };
    expect(await server.http.ask("/update_weights_from_disk", update)).toMatchObject({
      status: 200,
    });
    const before = await held(server);
    expect(before).toEqual({
      weights: [expect.stringMatching(/^f16-/), expect.stringMatching(/^f16-/)],
      info: expect.objectContaining({ weight_version: "step-1" }),
    });
    for (const signal of ["SIGKILL", "SIGTERM"] as const) {
      server.signal(signal);
      await server.exited;
      server = await serving(more);
      expect([signal, await held(server)]).toEqual([signal, before]);
    }
    server.signal("SIGTERM");
    await server.exited;
  },
);
