// `rollout --journal DIR`: a process that is killed loses nothing but what it generated since its last write.

import { expect, test } from "bun:test";
import {
  existsSync,
  readdirSync,
  readFileSync,
  statSync,
  truncateSync,
  writeFileSync,
} from "node:fs";
import { join } from "node:path";
import type { ReportFile } from "../../src/core/rollout/report.ts";
import { temporaryFolder } from "../suite/temporary-folder.ts";
import { ended, engineMissing, foretoken, PROMPTS, start } from "./tool.ts";

const missing = engineMissing();
if (missing !== null) console.warn(`skipped, the embedded engine cannot run here: ${missing}`);
const engineTest = test.skipIf(missing !== null);

const folder = temporaryFolder("e2e");
const file = join(folder, "journal", "rollout.journal");

function job(out: string, ...more: string[]): string[] {
  const size = ["--limit", "3", "--group-size", "3", "--max-tokens", "400", "--chunk-tokens", "32"];
  const output = ["--out", join(folder, out), "--report", join(folder, `${out}.json`), "--quiet"];
  return ["rollout", PROMPTS, ...size, "--deterministic", ...output, ...more];
}

/** Tokens, logprobs and reason of every response by name. */
function responses(out: string): Map<string, unknown> {
  const lines = readFileSync(join(folder, out), "utf8").trim().split("\n");
  const parsed = lines.map((line) => JSON.parse(line));
  expect(new Set(parsed.map(({ group, index }) => `${group} ${index}`)).size).toBe(lines.length);
  return new Map(
    parsed
      .map(({ group, index, token_ids, logprobs, finish_reason }): [string, unknown] => [
        `${group} ${index}`,
        { token_ids, logprobs, finish_reason },
      ])
      .toSorted(([a], [b]) => (a < b ? -1 : 1)),
  );
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

    const killed = start(job("resumed", ...journal));
    while (!existsSync(file) || statSync(file).size < 4_000) await Bun.sleep(1);
    // However fast it is, it is not done before the other one has looked.
    killed.kill("SIGSTOP");
    const second = await foretoken(...job("other", ...journal));
    expect(second.stderr).toContain(`process ${killed.pid} uses it`);
    killed.kill("SIGKILL");
    await ended(killed);
    truncateSync(file, statSync(file).size - 5);

    expect((await foretoken(...job("resumed", ...journal))).stderr).toBe("");
    expect(responses("resumed")).toEqual(whole);
    const { resumed, generated } = tokensOf("resumed");
    expect(resumed + generated).toBe(all);
    expect(resumed).toBeGreaterThan(100);
    expect(generated).toBeGreaterThan(0);

    // Again: nothing is left to generate.
    await foretoken(...job("again", ...journal));
    expect(responses("again")).toEqual(whole);
    expect(tokensOf("again")).toEqual({ resumed: all, generated: 0 });
  },
);

engineTest(
  "rollout --journal: another run's journal and a damaged one are refused by name",
  async () => {
    const other = await foretoken(...job("other", ...journal, "--seed", "9"));
    expect(other.status).toBe(2);
    expect(other.stderr).toContain("holds another run");
    const bytes = readFileSync(file);
    bytes[200] = (bytes[200] ?? 0) ^ 1;
    writeFileSync(file, bytes);
    const damaged = await foretoken(...job("other", ...journal));
    expect(damaged.status).toBe(1);
    expect(damaged.stderr).toMatch(/rollout\.journal: record \d+ at byte \d+ is damaged/);
  },
);

/** Tokens of each of three responses. */
const LONG = 300;
const SERVE = ["serve", "--llama", "2", "--deterministic", "--chunk-tokens", "32", "--log", "json"];

async function serving(port: number, ...more: string[]) {
  const child = start([...SERVE, "--port", `${port}`, "--log", "text:error", ...more]);
  const url = `http://127.0.0.1:${port}`;
  for (;;) {
    const answer = await fetch(`${url}/health`).catch(() => null);
    if (answer?.ok) return { child, url };
    await Bun.sleep(50);
  }
}

engineTest(
  "serve --journal: kill -9, and /v1/rollouts goes on where it was, bit for bit",
  async () => {
    const port = 21_000 + Math.floor(Math.random() * 9_000);
    const body = JSON.stringify({
      id: "r1",
      detached: true,
      n: 3,
      sampling_params: { seed: 5, temperature: 1, max_tokens: 150 },
      groups: [
        { id: "a", prompt: "Hello there" },
        { id: "b", prompt: "Once upon a time" },
      ],
    });
    const ask = async (url: string) => await fetch(`${url}/v1/rollouts`, { method: "POST", body });
    const linesOf = (text: string) =>
      text
        .trim()
        .split("\n")
        .map((line) => JSON.parse(line))
        .filter(({ group }) => group !== undefined)
        .map(({ group, index, token_ids, logprobs }) => ({ group, index, token_ids, logprobs }))
        .toSorted((a, b) => `${a.group} ${a.index}`.localeCompare(`${b.group} ${b.index}`));

    const kept = join(folder, "served");
    const first = await serving(port, "--journal", kept);
    let read = "";
    const decoder = new TextDecoder();
    for await (const part of (await ask(first.url)).body ?? []) {
      read += decoder.decode(part, { stream: true });
      // A group, whole.
      if (read.split("\n").length > 3) break;
    }
    const handedOut = linesOf(read.slice(0, read.lastIndexOf("\n")));
    first.child.kill("SIGKILL");
    await ended(first.child);

    const second = await serving(port, "--journal", kept);
    // It is ready, and so are its rollouts.
    const again = await ask(second.url);
    expect(again.status).toBe(200);
    const lines = linesOf(await again.text());
    const metrics = await (await fetch(`${second.url}/metrics`)).text();
    const count = (name: string) =>
      Number(new RegExp(`^${name}\\S* (\\d+)`, "m").exec(metrics)?.[1]);
    second.child.kill("SIGTERM");
    await ended(second.child);

    const third = await serving(port);
    const whole = linesOf(await (await ask(third.url)).text());
    third.child.kill("SIGKILL");
    await ended(third.child);
    expect(lines).toEqual(whole);
    expect(lines).toEqual(expect.arrayContaining(handedOut));
    const tokens = whole.reduce((sum, { token_ids }) => sum + token_ids.length, 0);
    const resumed = count("foretoken_resumed_tokens_total");
    expect(resumed).toBeGreaterThanOrEqual(
      handedOut.reduce((sum, { token_ids }) => sum + token_ids.length, 0),
    );
    expect(resumed + count("vllm:generation_tokens_total")).toBe(tokens);
  },
);

engineTest(
  "serve --journal: kill -9, and a request with an id is adopted, bit for bit and not generated anew",
  async () => {
    const port = 21_000 + Math.floor(Math.random() * 9_000);
    const kept = join(folder, "requests");
    const ask = async (url: string, id: string, fields: object = {}) => {
      const body = { prompt: [5, 6, 7, 8], max_tokens: LONG, seed: 3, n: 3, ...fields };
      const answer = await fetch(`${url}/v1/completions`, {
        method: "POST",
        headers: { "x-request-id": id },
        body: JSON.stringify({ ...body, temperature: 1, ignore_eos: true, logprobs: 1 }),
      });
      const { choices } = (await answer.json()) as { choices?: object[] };
      return { status: answer.status, choices };
    };
    const generated = async (url: string): Promise<number> => {
      const metrics = await (await fetch(`${url}/metrics`)).text();
      return Number(/^vllm:generation_tokens_total\S* (\d+)/m.exec(metrics)?.[1]);
    };

    const first = await serving(port, "--journal", kept);
    const short = await ask(first.url, "short", { max_tokens: 20 });
    // No seed: only its journal has the random numbers.
    const drawn = await ask(first.url, "drawn", { max_tokens: 20, seed: null });
    const before = await generated(first.url);
    const post = (path: string) => fetch(first.url + path, { method: "POST" });
    await post("/pause?mode=keep");
    const lost = ask(first.url, "long").catch(() => null);
    // A little at a time, so that it is not done however fast the engines are.
    while ((await generated(first.url)) < before + 150) {
      await post("/resume");
      await post("/pause?mode=keep");
    }
    // What was made is written within 50 ms.
    const written = () =>
      readdirSync(kept).reduce((n, name) => n + statSync(join(kept, name)).size, 0);
    for (let size = -1; size !== written(); await Bun.sleep(200)) size = written();
    first.child.kill("SIGKILL");
    await ended(first.child);
    expect(await lost).toBe(null);

    const second = await serving(port, "--journal", kept);
    expect(await ask(second.url, "short", { max_tokens: 20 })).toEqual(short);
    expect(await ask(second.url, "drawn", { max_tokens: 20, seed: null })).toEqual(drawn);
    expect(await generated(second.url)).toBe(0);
    const long = await ask(second.url, "long");
    expect(await generated(second.url)).toBeLessThan(3 * LONG - 100);
    // Another body under a name that was used: a request of its own.
    const other = await ask(second.url, "drawn", { max_tokens: 21, seed: 4 });
    second.child.kill("SIGTERM");
    await ended(second.child);

    const third = await serving(port);
    expect(await ask(third.url, "long")).toEqual(long);
    expect(await ask(third.url, "other", { max_tokens: 21, seed: 4 })).toEqual(other);
    third.child.kill("SIGKILL");
    await ended(third.child);
  },
);
