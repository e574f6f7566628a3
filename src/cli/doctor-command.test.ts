// The command as its user runs it. What it finds on real servers is tested in test/vllm.

import { expect, test } from "bun:test";
import { join } from "node:path";

const MAIN = join(import.meta.dir, "..", "main.ts");

async function doctor(...args: string[]): Promise<{ status: number; out: string; err: string }> {
  const child = Bun.spawn([process.execPath, MAIN, "doctor", ...args], {
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

test("doctor: a Foretoken is named as such, with the workers to examine", async () => {
  const server = Bun.spawn([process.execPath, MAIN, "serve", "--port", "0", "--log", "off"], {
    stdin: "ignore",
    stdout: "pipe",
    stderr: "inherit",
  });
  try {
    const { value } = await server.stdout.getReader().read();
    const url = new TextDecoder().decode(value).trim().split(" ").at(-1) ?? "";
    const { status, out } = await doctor(url);
    expect(status).toBe(1);
    expect(out).toContain("it is Foretoken");
    expect(out).not.toContain("vLLM 0.1.0");
  } finally {
    server.kill();
    await server.exited;
  }
});

test("doctor: what is no URL of an engine is a usage error", async () => {
  const { status, err } = await doctor("ws://127.0.0.1:1");
  expect(status).toBe(2);
  expect(err).toContain('"ws://127.0.0.1:1" is no engine\'s URL');
});
