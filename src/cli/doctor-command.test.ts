// The command as its user runs it. What it finds on real servers is tested in test/vllm.

import { expect, setDefaultTimeout, test } from "bun:test";
import { foretoken, PROMPTS } from "../../test/e2e/tool.ts";
import { until } from "../../test/faults/http-client.ts";
import { ToolProcess } from "../../test/faults/process.ts";
import { engineTest } from "../../test/suite/engine-test.ts";

setDefaultTimeout(180_000);

const doctor = (...args: string[]) => foretoken("doctor", ...args);

test("doctor: an engine that is not there is not fit for rollouts, and the table names the fix", async () => {
  const { status, stdout } = await doctor("http://127.0.0.1:1");
  expect(status).toBe(1);
  expect(stdout).toContain("│ health");
  expect(stdout).toContain("→ start it, or give its URL: http://HOST:PORT");
  expect(stdout).toContain("http://127.0.0.1:1: NOT fit for rollouts: 1 failure, 0 warnings");
});

test("doctor --json: the same, one entry for each engine, and nothing else on stdout", async () => {
  const { status, stdout } = await doctor("http://127.0.0.1:1", "http://127.0.0.1:2/", "--json");
  expect(status).toBe(1);
  const { engines } = JSON.parse(stdout);
  expect(engines).toMatchObject([
    { url: "http://127.0.0.1:1", version: null, findings: [{ check: "health", verdict: "fail" }] },
    { url: "http://127.0.0.1:2", version: null, findings: [{ check: "health", verdict: "fail" }] },
  ]);
});

/** With no worker it is not ready; with one it answers SGLang's routes too. */
async function expectNamed(server: ToolProcess): Promise<void> {
  const { status, stdout } = await doctor(server.url);
  expect(status).toBe(1);
  expect(stdout).toContain("is Foretoken");
  expect(stdout).not.toContain("vLLM 0.1.0");
}

const SERVE = ["serve", "--port", "0", "--log", "off"];

test("doctor: a Foretoken without a worker is named as such", async () => {
  const server = await ToolProcess.listening(...SERVE);
  await expectNamed(server);
  await server.kill();
});

engineTest("doctor, rollout: a Foretoken with an engine is named as such", async () => {
  const server = await ToolProcess.listening(...SERVE, "--llama", "1", "--kv-tokens", "512");
  await until(() => server.http.isServing(), "the engine");
  await expectNamed(server);
  const { url } = server;
  const rollout = await foretoken("rollout", PROMPTS, "--worker", url, "--out", "/dev/null");
  expect(rollout.status).toBe(2);
  expect(rollout.stderr).toContain(`${url} is Foretoken`);
  await server.kill();
});

test("doctor: what is no URL of an engine is a usage error", async () => {
  const { status, stderr } = await doctor("ws://127.0.0.1:1");
  expect(status).toBe(2);
  expect(stderr).toContain('http://HOST:PORT; "ws://127.0.0.1:1" is none');
});
