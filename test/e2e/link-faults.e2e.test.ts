// A sidecar and its linked workers as real processes, while one of them is killed, stopped or started again: how
// soon it is seen, and that no token is lost, repeated or changed.

import { afterEach, expect, setDefaultTimeout, test } from "bun:test";
import { freePort } from "../../src/tools/up/ports.ts";
import {
  countIn,
  generate,
  Proc,
  startSidecar,
  startWorker,
  untilTrue,
  workersOf,
} from "./fleet.ts";
import { engineMissing } from "./tool.ts";

const missing = engineMissing();
if (missing !== null) console.warn(`skipped, the embedded engine cannot run here: ${missing}`);
const engineTest = test.skipIf(missing !== null);

setDefaultTimeout(180_000);

const REQUESTS = 16;
const TOKENS = 96;
/** What must be seen within a second, and run elsewhere within two; on a busy machine everything takes longer. */
const SEEN_MS = 5_000;

const procs: Proc[] = [];

afterEach(async () => {
  await Promise.all(procs.splice(0).map((proc) => proc.end()));
});

const isServing = async (url: string) =>
  (await workersOf(url)).every(({ state }) => state === "ready");

async function fleet(): Promise<{ ports: number[]; workers: Proc[]; sidecar: Proc; url: string }> {
  const ports = [freePort("127.0.0.1"), freePort("127.0.0.1")];
  const workers = await Promise.all(ports.map((port) => startWorker(port)));
  procs.push(...workers);
  const { proc, url } = await startSidecar(ports);
  procs.push(proc);
  await untilTrue(() => isServing(url), "both workers");
  return { ports, workers, sidecar: proc, url };
}

const askAll = (url: string) =>
  Promise.all(Array.from({ length: REQUESTS }, (_, n) => generate(url, n, TOKENS)));

const stateOf = async (url: string, index: number) => (await workersOf(url))[index]?.state;

const isUnderLoad = async (url: string) => {
  const answer = await fetch(new URL("/load", url));
  return ((await answer.json()) as { server_load: number }).server_load === REQUESTS;
};

engineTest("a worker that is killed is seen at once, and its requests end elsewhere", async () => {
  const { ports, workers, sidecar, url } = await fleet();
  const undisturbed = await askAll(url);
  const asked = askAll(url);
  await untilTrue(() => isUnderLoad(url), "the load");
  workers[0]?.kill("SIGKILL");
  await untilTrue(async () => (await stateOf(url, 0)) === "reconnecting", "the state", SEEN_MS);
  await untilTrue(async () => (await countIn(url, "reconnecting")) === 1, "the metric", SEEN_MS);
  const pattern = new RegExp(`worker=ws://127.0.0.1:${ports[0]} state=reconnecting`);
  expect(sidecar.line(pattern)?.text).toContain("WARN");
  expect(await asked).toEqual(undisturbed);
  procs.push(await startWorker(ports[0] ?? 0));
  await untilTrue(async () => (await stateOf(url, 0)) === "ready", "the worker", SEEN_MS);
  expect(await askAll(url)).toEqual(undisturbed);
});

engineTest("a worker that stands still for a while is seen, and loses nothing", async () => {
  const { workers, url } = await fleet();
  const undisturbed = await askAll(url);
  const asked = askAll(url);
  await untilTrue(() => isUnderLoad(url), "the load");
  workers[0]?.kill("SIGSTOP");
  await untilTrue(async () => (await stateOf(url, 0)) === "reconnecting", "the state", SEEN_MS);
  // What comes now is served by the other one.
  expect(await generate(url, 0, TOKENS)).toEqual(undisturbed[0] ?? []);
  workers[0]?.kill("SIGCONT");
  await untilTrue(async () => (await stateOf(url, 0)) === "ready", "the worker", SEEN_MS);
  expect(await asked).toEqual(undisturbed);
});

engineTest("a sidecar that is killed and started again has its workers at once", async () => {
  const { ports, workers, sidecar, url } = await fleet();
  const undisturbed = await askAll(url);
  const lost = askAll(url).catch(() => "lost with the sidecar");
  await untilTrue(() => isUnderLoad(url), "the load");
  sidecar.kill("SIGKILL");
  await sidecar.child.exited;
  expect(await lost).toBe("lost with the sidecar");
  const startedMs = performance.now();
  const again = await startSidecar(ports);
  procs.push(again.proc);
  await untilTrue(() => isServing(again.url), "both workers");
  expect(performance.now() - startedMs).toBeLessThan(15_000);
  expect(workers[0]?.line(/session_ended /)?.text).toContain("WARN");
  expect(await askAll(again.url)).toEqual(undisturbed);
});

engineTest(
  "a sidecar beside another one is told who has the worker, and takes nothing from it",
  async () => {
    const { ports, url } = await fleet();
    const second = new Proc(["serve", "--port", "0", "--worker", `ws://127.0.0.1:${ports[0]}`]);
    procs.push(second);
    await untilTrue(() => second.line(/in use by /) !== null, "a refusal");
    expect(second.line(/in use by /)?.text).toMatch(/in use by .+, process \d+/);
    expect(await isServing(url)).toBe(true);
    expect((await generate(url, 1, TOKENS)).length).toBe(TOKENS);
  },
);
