// A sidecar and its linked workers as real processes, while one of them is killed, stopped or started again: it is seen,
// and no token is lost, repeated or changed.

import { afterEach, expect, setDefaultTimeout } from "bun:test";
import { until } from "../faults/http-client.ts";
import type { ToolProcess } from "../faults/process.ts";
import { engineTest } from "../suite/engine-test.ts";
import { generate, generatingAfter, startSidecar, startWorker, untilServing } from "./fleet.ts";

setDefaultTimeout(180_000);

const REQUESTS = 16;
/** Length at which no response ends between everyone's first token and the fault. */
const TOKENS = 128;

const processes: ToolProcess[] = [];

afterEach(async () => {
  for (const one of processes) one.signal("SIGCONT");
  await Promise.all(processes.splice(0).map((one) => one.kill()));
});

async function fleet(): Promise<{ workers: ToolProcess[]; sidecar: ToolProcess }> {
  const workers = await Promise.all([startWorker(null), startWorker(null)]);
  const sidecar = await startSidecar(workers);
  processes.push(sidecar, ...workers);
  await untilServing(sidecar);
  return { workers, sidecar };
}

const askAll = (sidecar: ToolProcess) =>
  Promise.all(Array.from({ length: REQUESTS }, (_, n) => generate(sidecar, n, TOKENS)));

/** All are asked for before the first token, and some tokens are there. */
async function underLoad() {
  const { workers, sidecar } = await fleet();
  const undisturbed = await askAll(sidecar);
  let asked: ReturnType<typeof askAll> = Promise.resolve([]);
  await generatingAfter(sidecar, async () => {
    asked = askAll(sidecar);
    asked.catch(() => undefined);
    const load = async () => (await sidecar.http.json("/load")) as { server_load: number };
    await until(async () => (await load()).server_load === REQUESTS, "the load");
  });
  return { workers, sidecar, undisturbed, asked };
}

const untilState = (sidecar: ToolProcess, state: string) =>
  until(async () => (await sidecar.http.workers())[0]?.state === state, state);

engineTest("a worker that is killed is seen at once, and its requests end elsewhere", async () => {
  const { workers, sidecar, undisturbed, asked } = await underLoad();
  const [first] = workers;
  const url = first?.url ?? "";
  await first?.kill();
  await untilState(sidecar, "reconnecting");
  const counted = () => sidecar.http.metric("foretoken_workers", 'state="reconnecting"');
  await until(async () => (await counted()) === 1, "the metric");
  expect((await sidecar.said(new RegExp(`.*worker=${url} state=reconnecting`)))?.[0]).toContain(
    "WARN",
  );
  expect(await asked).toEqual(undisturbed);
  processes.push(await startWorker(url));
  await untilState(sidecar, "ready");
  expect(await askAll(sidecar)).toEqual(undisturbed);
});

engineTest("a worker that stands still for a while is seen, and loses nothing", async () => {
  const { workers, sidecar, undisturbed, asked } = await underLoad();
  workers[0]?.signal("SIGSTOP");
  await untilState(sidecar, "reconnecting");
  // What comes now is served by the other one.
  expect(await generate(sidecar, 0, TOKENS)).toEqual(undisturbed[0] ?? []);
  workers[0]?.signal("SIGCONT");
  await untilState(sidecar, "ready");
  expect(await asked).toEqual(undisturbed);
});

engineTest("a sidecar that is killed and started again has its workers at once", async () => {
  const { workers, sidecar, undisturbed, asked } = await underLoad();
  await sidecar.kill();
  // On a fast machine all had ended before.
  expect(await asked.catch(() => undisturbed)).toEqual(undisturbed);
  const again = await startSidecar(workers);
  processes.push(again);
  await untilServing(again);
  expect((await workers[0]?.said(/.*session_ended /))?.[0]).toContain("WARN");
  expect(await askAll(again)).toEqual(undisturbed);
});
