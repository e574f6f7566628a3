// A sidecar and its engine servers as real processes, while one of them is killed, stopped, cut off or started again: it is
// seen, and no token is lost, repeated or changed. The servers are stand-ins, whose every token is known.

import { afterEach, expect, setDefaultTimeout, test } from "bun:test";
import { join } from "node:path";
import { drawKey } from "../../src/core/request/request.ts";
import { chunkSeed } from "../../src/engines/vllm/body.ts";
import { freePort } from "../../src/tools/up/ports.ts";
import type { CuttingProxy } from "../faults/cutting-proxy.ts";
import { until } from "../faults/http-client.ts";
import { startStandIn, ToolProcess } from "../faults/process.ts";
import { standInResponse } from "../faults/stand-in/tokens.ts";
import { exactSample } from "../faults/stand-in/vllm-stand-in.ts";
import { engineTest } from "../suite/engine-test.ts";
import { MAIN, ROOT } from "./tool.ts";

setDefaultTimeout(180_000);

const TOKENIZER = join(ROOT, "test", "fixtures", "foretoken-3m-hf");
const REQUESTS = 16;
/** Steps long enough for a fault to come in the middle of every chunk. */
const TOKENS = 64;
const STEP_MS = 20;

const processes: ToolProcess[] = [];
const proxies: CuttingProxy[] = [];

afterEach(async () => {
  for (const one of processes) one.signal("SIGCONT");
  await Promise.all(processes.splice(0).map((one) => one.kill()));
  await Promise.all(proxies.splice(0).map((proxy) => proxy.close()));
});

function kept(one: ToolProcess): ToolProcess {
  processes.push(one);
  return one;
}

async function startServer(port = freePort("127.0.0.1")): Promise<ToolProcess> {
  const server = kept(startStandIn({ port, stepMs: STEP_MS, isExact: true }));
  await server.listens();
  return server;
}

async function startSidecar(urls: readonly string[]): Promise<ToolProcess> {
  const workers = urls.flatMap((url) => ["--worker", url]);
  const args = ["--port", "0", "--tokenizer", TOKENIZER, "--chunk-tokens", "48", ...workers];
  const sidecar = kept(await ToolProcess.listening("serve", ...args));
  await until(() => sidecar.http.isServing(), "every server");
  return sidecar;
}

const promptOf = (n: number): number[] => [5, 6, 7, 8 + n, 9];
const everyN = Array.from({ length: REQUESTS }, (_, n) => n);
const EXPECTED = everyN.map((n) => {
  const sample = exactSample(chunkSeed(drawKey(n, "", 0), 0), null);
  return standInResponse({ prompt: promptOf(n), sample, tokensMax: TOKENS, stopTokenIds: [] });
});

const generate = ({ http }: ToolProcess, n: number) =>
  http.tokens(promptOf(n), { max_tokens: TOKENS, ignore_eos: true, seed: n });
const askAll = (sidecar: ToolProcess) => Promise.all(everyN.map((n) => generate(sidecar, n)));

/** Two servers, with requests that all have tokens and are far from their end. `before`: what stands before the first. */
async function underLoad(before = async ({ url }: ToolProcess) => url) {
  const [first, second] = await Promise.all([startServer(), startServer()]);
  const sidecar = await startSidecar([await before(first), second.url]);
  const asked = askAll(sidecar);
  asked.catch(() => undefined);
  const tokens = () => sidecar.http.metric("vllm:generation_tokens_total");
  await until(async () => (await tokens()) > 4 * REQUESTS, "tokens");
  return { first, second, sidecar, asked };
}

const stateOfFirst = async ({ http }: ToolProcess) => (await http.workers())[0]?.state;
const untilState = (sidecar: ToolProcess, state: string) =>
  until(async () => (await stateOfFirst(sidecar)) === state, state);

test("a server that is killed in the middle of its chunks is seen, and its requests end elsewhere", async () => {
  const { first, sidecar, asked } = await underLoad();
  await first.kill();
  await untilState(sidecar, "reconnecting");
  expect(await sidecar.http.metric("foretoken_workers", 'state="reconnecting"')).toBe(1);
  expect((await sidecar.said(/.*worker=http\S+ state=reconnecting/))?.[0]).toContain("WARN");
  expect(await asked).toEqual(EXPECTED);
  await startServer(Number(new URL(first.url).port));
  await untilState(sidecar, "ready");
  expect(await askAll(sidecar)).toEqual(EXPECTED);
});

engineTest("an embedded engine whose thread ends is opened again, each time", async () => {
  const preload = ["--preload", join(import.meta.dir, "ending-threads.ts"), MAIN];
  const program = [process.execPath, ...preload];
  const args = ["serve", "--llama", "1", "--port", "0", "--deterministic", "--log", "text"];
  const sidecar = kept(new ToolProcess(args, { program }));
  const { http } = await sidecar.listens().then(() => sidecar);
  await until(() => http.isServing(), "the engine");
  const greedy = () =>
    http.tokens(promptOf(0), { max_tokens: 600, ignore_eos: true, temperature: 0 });
  const undisturbed = await greedy();
  const untilSaid = (line: RegExp, times: number) =>
    until(
      () => sidecar.lines.filter((one) => line.test(one)).length === times,
      () => sidecar.text,
    );
  for (let life = 1; life <= 2; life += 1) {
    const tokens = () => http.metric("vllm:generation_tokens_total");
    const before = await tokens();
    const asked = greedy();
    await until(async () => (await tokens()) > before, "tokens");
    sidecar.signal("SIGUSR2");
    await untilSaid(/ state=down /, life);
    expect(await asked).toEqual(undisturbed);
  }
  sidecar.signal("SIGUSR2");
  // Opening takes much longer than the signal: this thread ends before it has opened.
  await untilSaid(/engine's thread begins/, 4);
  sidecar.signal("SIGUSR2");
  await untilSaid(/engine's thread begins/, 5);
  await until(() => http.isServing(), "the engine");
  expect(await greedy()).toEqual(undisturbed);
});
