// Workers that come and go by POST and DELETE /workers, over stand-ins for vLLM servers on real ports.

import { afterAll, beforeAll, expect, setDefaultTimeout, test } from "bun:test";
import { expectedOf, StandInBed } from "../../test/faults/attacks/stand-in-bed.ts";
import { SglangStandIn } from "../../test/faults/stand-in/sglang-stand-in.ts";
import { VllmStandIn } from "../../test/faults/stand-in/vllm-stand-in.ts";
import { exchangeOf } from "../../test/suite/exchange.ts";
import { hashString } from "../core/base/hash.ts";
import { Router } from "./route.ts";
import { type EngineAddress, WorkerRegistry } from "./worker-registry.ts";

setDefaultTimeout(180_000);

interface Entry {
  readonly id: string;
  readonly url: string;
  readonly is_healthy: boolean;
  readonly state: string;
}

const DEADLINE_MS = 60_000;

let bed: StandInBed;
let late: VllmStandIn[];

beforeAll(async () => {
  bed = await StandInBed.start(1, () => ({}));
  late = await Promise.all([VllmStandIn.start(), VllmStandIn.start()]);
});

afterAll(async () => {
  await bed.stop();
  await Promise.all(late.map((standIn) => standIn.stop()));
});

async function listed(): Promise<Entry[]> {
  return ((await (await bed.call("GET", "/workers")).json()) as { workers: Entry[] }).workers;
}

async function until(holds: (entries: readonly Entry[]) => boolean): Promise<void> {
  const endMs = Date.now() + DEADLINE_MS;
  while (!holds(await listed())) {
    if (Date.now() > endMs) throw new Error(`still ${JSON.stringify(await listed())}`);
    await Bun.sleep(10);
  }
}

test("workers: where all were named at the start, this server stands for them", async () => {
  expect(await listed()).toMatchObject([{ url: bed.sidecar.url.origin, is_healthy: true }]);
});

test("workers: this server's own address, as slime's engine class registers it, changes nothing", async () => {
  const { origin, port } = bed.sidecar.url;
  for (const url of [origin, `${origin}/`, `http://localhost:${port}`]) {
    const answer = await bed.post("/workers", { url, worker_type: "regular" });
    expect([answer.status, await answer.json()]).toMatchObject([200, { status: "accepted" }]);
  }
  expect(await listed()).toMatchObject([{ url: origin, is_healthy: true }]);
});

test("workers: engines come and go under load, and every response is as one engine makes it", async () => {
  const [first] = bed.standIns;
  const [second, third] = late;
  const prompts = Array.from({ length: 300 }, (_, i) => [i, 7, i % 13]);
  const made = prompts.map(async (prompt, i) => {
    await Bun.sleep(5 * i);
    return await bed.complete(prompt);
  });
  for (const standIn of late) {
    const answer = await bed.post("/workers", { url: `${standIn.url}/` });
    expect([answer.status, await answer.json()]).toMatchObject([202, { url: standIn.url }]);
  }
  await until((entries) => entries.filter((entry) => entry.is_healthy).length === 3);
  const again = await bed.post("/workers", { url: second?.url });
  expect([again.status, (await listed()).length]).toEqual([200, 3]);
  const gone = await bed.call("DELETE", `/workers/${encodeURIComponent(first?.url ?? "")}`);
  expect(gone.status).toBe(202);
  await until((entries) => entries.every(({ url }) => url !== first?.url));
  const entry = (await listed()).find(({ url }) => url === third?.url);
  expect((await bed.call("GET", `/workers/${entry?.id}`)).status).toBe(200);
  await bed.call("DELETE", `/workers/${entry?.id}`);
  await until((entries) => entries.length === 1);
  expect(await Promise.all(made)).toEqual(prompts.map(expectedOf));
  expect(second?.bodies.length).toBeGreaterThan(0);
  expect(bed.failures).toEqual([]);
});

test("workers: without any, requests are refused; one that comes back serves", async () => {
  const [entry] = await listed();
  await bed.call("DELETE", `/workers/${entry?.id}`);
  await until((entries) => entries.length === 0);
  expect((await bed.call("GET", "/health")).status).toBe(503);
  expect((await bed.complete([1, 2, 3])).status).toBe(503);
  await bed.post("/workers", { url: entry?.url });
  await until((entries) => entries[0]?.is_healthy === true);
  expect(await bed.complete([1, 2, 3])).toEqual(expectedOf([1, 2, 3]));
});

test("workers: this server is listed beside SGLang's engines, so that slime's abort reaches it", async () => {
  const engine = await SglangStandIn.start();
  try {
    const add = await bed.post(`/add_worker?url=${encodeURIComponent(engine.url)}`, {});
    expect([add.status, await add.json()]).toMatchObject([202, { url: engine.url }]);
    await until((entries) => entries.some(({ url, is_healthy: is }) => url === engine.url && is));
    const urls = (await listed()).map(({ url }) => url);
    expect(urls.slice(-2)).toEqual([engine.url, bed.sidecar.url.origin]);
    expect(await (await bed.call("GET", "/list_workers")).json()).toEqual({ urls });
    expect((await bed.post("/remove_worker", {})).status).toBe(400);
    const named = `/workers?url=${encodeURIComponent(engine.url)}`;
    expect((await bed.call("DELETE", named)).status).toBe(202);
    await until((entries) => entries.every(({ url }) => url !== engine.url));
    expect((await listed()).map(({ url }) => url)).not.toContain(bed.sidecar.url.origin);
  } finally {
    await engine.stop();
  }
});

test("workers: one that comes back while it still leaves stays", async () => {
  const slow = await VllmStandIn.start({
    // The first two requests are the probe's.
    faults: (arrival) => (arrival === 2 ? { kind: "silence", afterTokens: 1 } : null),
    silenceMs: 2_000,
  });
  const worker = `/workers/${encodeURIComponent(slow.url)}`;
  await bed.post("/workers", { url: slow.url });
  for (const { url } of await listed()) {
    if (url !== slow.url) await bed.call("DELETE", `/workers/${encodeURIComponent(url)}`);
  }
  await until((entries) => entries.length === 1 && entries[0]?.is_healthy === true);
  const made = bed.complete([5, 6, 7]);
  while (slow.bodies.length < 3) await Bun.sleep(5);
  await bed.call("DELETE", worker);
  expect((await bed.post("/workers", { url: slow.url })).status).toBe(202);
  await until((entries) => entries.length === 1 && entries[0]?.is_healthy === true);
  expect(await made).toEqual(expectedOf([5, 6, 7]));
  await bed.call("DELETE", worker);
  await until((entries) => entries.length === 0);
  await slow.stop();
});

test.each([
  [{ url: 5 }, "request: url is not a text"],
  [{}, "request: url is not a text"],
  [{ url: "gpu-0:8000" }, "http://HOST:PORT"],
  [{ url: "http://gpu-0:8000", worker_type: "prefill" }, "not regular: engines here prefill"],
  [{ url: `http://a/${"a".repeat(2500)}` }, "more than 2048"],
])("workers: a URL that is none is refused: %#", async (body, problem) => {
  const answer = await bed.post("/workers", body);
  expect([answer.status, await answer.text()]).toEqual([400, expect.stringContaining(problem)]);
  expect((await bed.call("DELETE", "/workers/nobody")).status).toBe(404);
});

test("workers: one that is registered again with another token joins anew with it", async () => {
  const engine = await VllmStandIn.start({ apiKey: "right" });
  const add = async (api_key?: string) =>
    (await bed.post("/workers", { url: engine.url, api_key })).status;
  const state = async () => (await listed()).find(({ url }) => url === engine.url)?.state;
  try {
    expect([await add("wrong"), await add("wrong")]).toEqual([202, 200]);
    expect(await state()).not.toBe("ready");
    expect([await add("right"), await add("right"), await add()]).toEqual([202, 200, 200]);
    await until((entries) => entries.some(({ url, is_healthy: is }) => url === engine.url && is));
    const { length } = await listed();
    expect(await bed.complete([8, 6, 7])).toEqual(expectedOf([8, 6, 7]));
    await bed.call("DELETE", `/workers/${encodeURIComponent(engine.url)}`);
    await until((entries) => entries.length === length - 1);
  } finally {
    await engine.stop();
  }
});

test("workers: two URLs have two ids, also where a hash of 32 bits has one for both", async () => {
  const never = () => Promise.reject(new Error("nothing is opened here"));
  const sourceOf = ({ url: name }: EngineAddress) => ({ name, keepsWeights: true, open: never });
  const registry = new WorkerRegistry({ sourceOf, hasFixed: false, drainMs: 0 });
  const router = new Router(registry.routes());
  const urls = ["http://10.0.47.164:8000", "http://10.0.100.194:8000"];
  expect(new Set(urls.map((url) => hashString(url))).size).toBe(1);
  const ids: string[] = [];
  for (const url of urls) {
    const answer = await router.handle(exchangeOf("POST", "/workers", { url }));
    ids.push(((await answer.json()) as { worker_id: string }).worker_id);
  }
  await router.handle(exchangeOf("DELETE", `/workers/${ids[1]}`, null));
  expect(registry.early.map(({ url }) => url)).toEqual(urls.slice(0, 1));
  for (const api_key of ["old", "new"]) {
    await router.handle(exchangeOf("POST", "/workers", { url: urls[0], api_key }));
    expect(registry.early).toMatchObject([{ url: urls[0], token: api_key }]);
  }
});
