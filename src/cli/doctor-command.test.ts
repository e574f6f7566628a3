// The command as its user runs it. What it finds on real servers is tested in test/vllm.

import { expect, setDefaultTimeout, test } from "bun:test";
import { join } from "node:path";
import { engineMissing } from "../../test/e2e/tool.ts";
import { until } from "../../test/faults/http-client.ts";

setDefaultTimeout(180_000);

const MAIN = join(import.meta.dir, "..", "main.ts");

const PROMPTS = join(import.meta.dir, "..", "..", "model", "prompts.jsonl");

interface Ran {
  readonly status: number;
  readonly out: string;
  readonly err: string;
}

const doctor = (...args: string[]) => run("doctor", ...args);

async function run(...args: string[]): Promise<Ran> {
  const child = Bun.spawn([process.execPath, MAIN, ...args], {
    stdin: "ignore",
    stdout: "pipe",
    stderr: "pipe",
  });
  const [out, err] = await Promise.all([
    new Response(child.stdout).text(),
    new Response(child.stderr).text(),
  ]);
  return { status: await child.exited, out, err };
}

test("doctor: an engine that is not there is not fit for rollouts, and the table names the fix", async () => {
  const { status, out } = await doctor("http://127.0.0.1:1");
  expect(status).toBe(1);
  expect(out).toContain("│ health");
  expect(out).toContain("→ start it, or give its URL: http://HOST:PORT");
  expect(out).toContain("http://127.0.0.1:1: NOT fit for rollouts: 1 failure, 0 warnings");
});

test("doctor --json: the same, one entry for each engine, and nothing else on stdout", async () => {
  const { status, out } = await doctor("http://127.0.0.1:1", "http://127.0.0.1:2/", "--json");
  expect(status).toBe(1);
  const { engines } = JSON.parse(out);
  expect(engines).toMatchObject([
    { url: "http://127.0.0.1:1", version: null, findings: [{ check: "health", verdict: "fail" }] },
    { url: "http://127.0.0.1:2", version: null, findings: [{ check: "health", verdict: "fail" }] },
  ]);
});

/** With no worker it is not ready; with one it answers SGLang's routes too. */
const SIDECARS = [
  { of: "without a worker", flags: [] },
  { of: "with an engine", flags: ["--llama", "1", "--kv-tokens", "512"] },
];
for (const { of, flags } of SIDECARS) {
  test.skipIf(flags.length > 0 && engineMissing() !== null)(
    `doctor, rollout: a Foretoken ${of} is named as such`,
    async () => {
      const args = ["serve", "--port", "0", "--log", "off", ...flags];
      const server = Bun.spawn([process.execPath, MAIN, ...args], {
        stdin: "ignore",
        stdout: "pipe",
        stderr: "inherit",
      });
      try {
        const { value } = await server.stdout.getReader().read();
        const url = new TextDecoder().decode(value).trim().split(" ").at(-1) ?? "";
        if (flags.length > 0) {
          await until(async () => (await fetch(`${url}/health`)).ok, "the engine", 30_000);
        }
        const { status, out } = await run("doctor", url);
        expect(status).toBe(1);
        expect(out).toContain("it is Foretoken");
        expect(out).not.toContain("vLLM 0.1.0");
        if (flags.length === 0) return;
        const rollout = await run("rollout", PROMPTS, "--worker", url, "--out", "/dev/null");
        expect(rollout.status).toBe(2);
        expect(rollout.err).toContain(`${url} is Foretoken`);
      } finally {
        server.kill();
        await server.exited;
      }
    },
  );
}

test("doctor: what is no URL of an engine is a usage error", async () => {
  const { status, err } = await doctor("ws://127.0.0.1:1");
  expect(status).toBe(2);
  expect(err).toContain('"ws://127.0.0.1:1" is no engine\'s URL');
});
