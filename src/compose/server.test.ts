// The sidecar as a whole, over simulated workers and a real port: how it begins and how it ends.

import { expect, test } from "bun:test";
import { cpSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { SimulatedWorker } from "../../test/faults/simulated/worker.ts";
import { exchange, fetchOf, registerOf } from "../../test/suite/draft-client.ts";
import { NO_TELEMETRY } from "../../test/suite/no-figures.ts";
import { serveOptions, startServer } from "../../test/suite/serve-fixture.ts";
import { untilSettled } from "../../test/suite/sidecar-bed.ts";
import { temporaryFolder } from "../../test/suite/temporary-folder.ts";
import {
  groupId,
  type WeightsId,
  type WorkerId,
  weightEpoch,
  weightsId,
} from "../core/base/ids.ts";
import type { ClientMessage, Fetched } from "../core/draft/service/message.ts";
import type { WorkerSource } from "../fleet/engines.ts";
import type { WeightsNotice } from "../fleet/updates.ts";
import { openHuggingFaceText, openHuggingFaceThread } from "../text/hugging-face.ts";
import type { ServeOptions } from "./options.ts";

class Engines {
  readonly workers: SimulatedWorker[] = [];
  readonly closed: WorkerId[] = [];
  /** Name that the engines give their weights; null: they have none. */
  readonly #weights: WeightsId | null;

  constructor(weights: WeightsId | null = null) {
    this.#weights = weights;
  }

  get source(): WorkerSource {
    return {
      name: "simulated",
      keepsWeights: false,
      open: async ({ workerId, epoch }) => {
        const worker = new SimulatedWorker({
          workerId,
          capacity: { slots: 4, kvTokens: 8192, contextTokens: 2048, kvBytesPerToken: 8 },
          epoch,
          lengthOf: () => 3000,
        });
        const close = worker.close.bind(worker);
        worker.close = async () => {
          this.closed.push(workerId);
          await close();
        };
        this.workers.push(worker);
        return Object.assign(worker, { weights: this.#weights });
      },
    };
  }

  /** Steps until `promise` is settled. */
  until<T>(promise: Promise<T>): Promise<T> {
    return untilSettled(promise, async () => {
      for (const worker of this.workers) worker.step();
      await new Promise<void>((resolve) => setImmediate(resolve));
    });
  }
}

function optionsOf(engines: Engines, port = 0): ServeOptions {
  return serveOptions({
    port,
    sources: [engines.source],
    limits: { requestsMax: 100, groupsMax: 10, keptBytesMax: 640000 },
    chunkTokens: 512,
    poolMemoryBytes: 2 ** 20,
    weightsTimeoutMs: 60_000,
    version: "1.2.3",
    eosTokenId: 1000,
  });
}

test("drain: earlier requests are answered before the server stops", async () => {
  const engines = new Engines();
  const running = await startServer(optionsOf(engines));
  const body = JSON.stringify({ token_ids: [1], sampling_params: { max_tokens: 1000, n: 8 } });
  const url = new URL("/inference/v1/generate", running.url);
  const asked = fetch(url, { method: "POST", body });
  while (running.sidecar.rollout.unfinished === 0) {
    await new Promise<void>((resolve) => setImmediate(resolve));
  }
  await engines.until(running.drain().then(() => running.stop()));
  const answer = (await (await asked).json()) as { choices: { token_ids: number[] }[] };
  expect(answer.choices.map((choice) => choice.token_ids.length)).toEqual(Array(8).fill(1000));
});

for (const [engines, believed, first] of [
  ["engines that name their weights", false, "v0"],
  ["engines that cannot", true, "v0"],
  // The server's own name for the epoch: naming it again begins none.
  ["engines that name their weights, after the current one", false, "0"],
  ["engines that cannot, after the current one", true, "0"],
] as const) {
  const does = believed ? "begins an epoch" : "changes nothing for others";
  test(`weights: a version that a request names ${does} on ${engines}, and the log says who`, async () => {
    const fleet = new Engines(believed ? null : weightsId("f16-0123456789abcdef"));
    const notices: WeightsNotice[] = [];
    const events = { weightsNotice: (notice: WeightsNotice) => void notices.push(notice) };
    const options = optionsOf(fleet);
    Object.assign(options.events, events);
    const running = await startServer(options);
    const post = async (path: string, asked: object, id = "r") =>
      await fleet.until(
        fetch(new URL(path, running.url), {
          method: "POST",
          headers: { "x-request-id": id },
          body: JSON.stringify(asked),
        }).then((answer) => answer.text()),
      );
    const groups = [{ id: "g", token_ids: [1], n: 2 }];
    const rollout = post("/v1/rollouts", {
      id: "one",
      groups,
      sampling_params: { max_tokens: 2000 },
    });
    for (let i = 0; i < 3; i += 1) {
      const sampling_params = { max_tokens: 1 };
      const named = { token_ids: [2], sampling_params, policy_version: i === 0 ? first : `v${i}` };
      // A refused request says nothing.
      await post(
        "/inference/v1/generate",
        { ...named, token_ids: [1e6], policy_version: "w" },
        "no",
      );
      await post("/inference/v1/generate", named, `id-${i}`);
    }
    const { report } = JSON.parse((await rollout).trimEnd().split("\n").at(-1) ?? "");
    expect([report.restarts > 0, running.sidecar.rollout.epoch > 0]).toEqual([believed, believed]);
    const kind = believed ? "learned" : "doubted";
    expect(notices[0]).toMatchObject({ kind, version: "v1", by: "request id-1" });
    expect(notices).toHaveLength(believed ? 2 : 1);
    await running.stop();
  });
}

test("v1/draft: an engine gets the sidecar's tokens of a group, and new weight epochs", async () => {
  const engines = new Engines();
  const running = await startServer({ ...optionsOf(engines), apiToken: "secret" });
  const headers = { authorization: "Bearer secret" };
  const body = JSON.stringify({ token_ids: [1], sampling_params: { max_tokens: 40, n: 2 } });
  const url = new URL("/inference/v1/generate", running.url);
  const made = await engines.until(fetch(url, { method: "POST", body, headers }));
  const { choices } = (await made.json()) as { choices: { token_ids: number[] }[] };
  const name = groupId("g1");
  const hello: ClientMessage = { kind: "hello", protocolVersion: 1, engine: "e" };
  const ask = async () => {
    const asked = [hello, registerOf(name, Int32Array.of(1)), fetchOf(name, [])];
    return (await exchange(`ws://${running.url.host}/v1/draft?token=secret`, asked)).answers;
  };
  const [welcome, registered, fetched] = await ask();
  expect(welcome).toMatchObject({ kind: "welcome", epoch: 0, telemetryMs: 1000 });
  expect(registered).toMatchObject({ status: "ok", have: [40, 40] });
  expect((fetched as Fetched).groups[0]?.deltas.map(({ tokens }) => [...tokens])).toEqual(
    choices.map(({ token_ids: ids }) => ids),
  );
  running.sidecar.advance(weightEpoch(1));
  const [, stale] = await ask();
  expect(stale).toMatchObject({ status: "stale_epoch", epoch: 1 });
  const closed = await fetch(new URL("/foretoken/engines", running.url));
  expect(closed.status).toBe(401);
  await running.stop();
});

test("seed: an answer says that it may not repeat while an engine drafts by other numbers", async () => {
  const engines = new Engines();
  const running = await startServer(optionsOf(engines));
  const hello: ClientMessage = { kind: "hello", protocolVersion: 1, engine: "e" };
  const seen: (string | null)[][] = [];
  for (const repeatsSeeds of [true, false]) {
    const report = { ...NO_TELEMETRY, repeatsSeeds };
    await exchange(`ws://${running.url.host}/v1/draft`, [hello, report]);
    const headerOf = async (path: string, body: object) => {
      const init = { method: "POST", body: JSON.stringify(body) };
      const answer = await engines.until(fetch(new URL(path, running.url), init));
      await engines.until(answer.text());
      return answer.headers.get("x-foretoken-seed");
    };
    const request = { token_ids: [1], sampling_params: { max_tokens: 3, seed: 7 } };
    const groups = [{ id: "g", token_ids: [1] }];
    const { sampling_params } = request;
    seen.push([
      await headerOf("/inference/v1/generate", request),
      await headerOf("/inference/v1/generate", { ...request, stream: true }),
      await headerOf("/v1/rollouts", { groups, sampling_params }),
      await headerOf("/inference/v1/generate", { ...request, sampling_params: { max_tokens: 3 } }),
    ]);
  }
  expect(seen).toEqual([
    [null, null, null, null],
    ["varies", "varies", "varies", null],
  ]);
  await running.stop();
});

test("abort_requests: takes ids as clients gave them or read them, and none for all", async () => {
  const engines = new Engines();
  const running = await startServer(optionsOf(engines));
  const post = async (path: string, body: object) => {
    const url = new URL(path, running.url);
    return await (await fetch(url, { method: "POST", body: JSON.stringify(body) })).json();
  };
  const ask = (id: string, token: number) =>
    post("/inference/v1/generate", {
      request_id: id,
      token_ids: [token],
      sampling_params: { max_tokens: 1000 },
    });
  const asked = ["a", "b-1", "c", "d"].map(ask);
  while (running.sidecar.rollout.unfinished < 4) {
    await new Promise<void>((resolve) => setImmediate(resolve));
  }
  const abort = (ids?: string[]) => post("/abort_requests", { request_ids: ids });
  expect(await abort(["generate-tokens-a", "b-1", "nobody"])).toEqual({
    status: "aborted",
    aborted: 2,
  });
  expect(running.sidecar.rollout.unfinished).toBe(2);
  expect(await post("/inference/v1/abort_requests", {})).toHaveProperty("error");
  expect(await abort()).toEqual({ status: "aborted", aborted: 2 });
  for (const answer of await Promise.all(asked)) {
    const { choices } = answer as { choices: { finish_reason: string }[] };
    expect(choices[0]?.finish_reason).toBe("abort");
  }
  await running.stop();
});

test("chats: a template beyond the engine is named at the start; chats end with it, texts do not", async () => {
  const folder = temporaryFolder("template");
  cpSync(join(import.meta.dir, "../../test/fixtures/foretoken-3m-hf"), folder, { recursive: true });
  writeFileSync(join(folder, "chat_template.jinja"), "{% include 'x' %}");
  const text = openHuggingFaceText(folder);
  const told: string[] = [];
  const engines = new Engines();
  const running = await startServer(
    serveOptions({
      sources: [engines.source],
      model: { text, openTextThread: () => openHuggingFaceThread(folder) },
      events: { chatProblem: (problem) => told.push(problem) },
    }),
  );
  try {
    expect(told).toEqual([expect.stringContaining("the statement 'include' is not supported")]);
    const ask = async (body: object) => {
      const url = new URL("/tokenize", running.url);
      const response = await fetch(url, { method: "POST", body: JSON.stringify(body) });
      return [response.status, await response.text()];
    };
    const chat = { messages: [{ role: "user", content: "x" }] };
    expect(await ask(chat)).toEqual([500, expect.stringContaining("'include' is not supported")]);
    expect((await ask({ prompt: "x" }))[0]).toBe(200);
  } finally {
    await running.stop();
  }
});

type Operation = { parameters: { in: string }[]; responses: { 200: { content?: object } } };

test("openapi: every GET route answers in the documented form", async () => {
  const engines = new Engines();
  const running = await startServer(optionsOf(engines));
  const get = (path: string) => fetch(new URL(path, running.url));
  const { paths }: { paths: Record<string, { get?: Operation }> } = JSON.parse(
    await (await get("/openapi.json")).text(),
  );
  for (const [path, { get: operation }] of Object.entries(paths)) {
    if (operation === undefined || operation.parameters.some((one) => one.in === "path")) continue;
    const answer = await get(path);
    // Simulated engines have no control plane.
    if (answer.status === 404) continue;
    const [wanted = null] = Object.keys(operation.responses[200].content ?? {});
    const type = answer.headers.get("content-type")?.split(";")[0] ?? null;
    expect([path, answer.status, type]).toEqual([path, 200, wanted]);
    await answer.text();
  }
  await running.stop();
});
