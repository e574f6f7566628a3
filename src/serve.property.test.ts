// Every route of the OpenAPI document is sent whatever JSON there is, and requests that are nearly right: whoever
// asks gets an answer, never a 5xx, and what is refused is refused in vLLM's shape. Afterwards all still works.

import { afterAll, beforeAll, expect, test } from "bun:test";
import fc from "fast-check";
import { SimulatedWorker } from "../test/faults/simulated/worker.ts";
import { EOS } from "../test/golden/requests/tiny-text.ts";
import { collecting, serveOptions } from "../test/suite/serve-fixture.ts";
import type { WorkerSource } from "./pool/pool.ts";
import { startSidecar } from "./serve.ts";
import type { RunningSidecar } from "./serve-options.ts";

const RUNS = 40;
const TEST_MS = 120_000;
const workers: SimulatedWorker[] = [];
const failures: unknown[] = [];
let sidecar: RunningSidecar;
let isOver = false;

const source: WorkerSource = {
  name: "simulated",
  keepsWeights: false,
  open: async ({ workerId, epoch }) => {
    const capacity = { slots: 64, kvTokens: 8192, contextTokens: 200, kvBytesPerToken: 8 };
    const worker = new SimulatedWorker({ workerId, capacity, epoch, lengthOf: () => 9 });
    workers.push(worker);
    return worker;
  },
};

beforeAll(async () => {
  sidecar = await startSidecar(
    serveOptions({
      sources: [source, source],
      bodyBytesMax: 10_000,
      limits: { requestsMax: 200, groupsMax: 20, keptBytesMax: 320000, keptResponsesMax: 300 },
      chunkTokens: 4,
      poolMemoryBytes: 2 ** 20,
      weightsTimeoutMs: 60_000,
      eosTokenId: EOS,
      events: collecting(failures),
    }),
  );
  void stepAlways();
});

afterAll(async () => {
  isOver = true;
  await sidecar.stop();
});

async function stepAlways(): Promise<void> {
  while (!isOver) {
    for (const worker of workers) if (!worker.isIdle) worker.step();
    await new Promise<void>((resolve) => setImmediate(resolve));
  }
}

const params = { max_tokens: 12, n: 2, temperature: 1, seed: 3, logprobs: 2, stop: ["5"] };
const chat = { messages: [{ role: "user", content: "a" }], max_tokens: 8, logprobs: true };
const { stop: _, logprobs: __, n: ___, ...sampling } = params;

/** A valid body for each route. Routes that stop everything have their own tests. */
const GOOD: Readonly<Record<string, Readonly<Record<string, unknown>>>> = {
  "/v1/completions": { prompt: "a", ...params, stream: true, stream_options: {}, echo: false },
  "/v1/chat/completions": { ...chat, top_logprobs: 2, tools: [], tool_choice: "none" },
  "/v1/chat/completions/tokens": { ...chat, tokens: [1, 2] },
  "/v1/chat/completions/render": chat,
  "/inference/v1/generate": { token_ids: [1, 2], sampling_params: params, request_id: "a" },
  "/tokenize": { prompt: "a", return_token_strs: true },
  "/detokenize": { tokens: [1, 2] },
  "/generate": { input_ids: [1], sampling_params: { max_new_tokens: 3, n: 2 }, rid: "a" },
  "/abort_request": { rid: "a", abort_all: false },
  "/v1/rollouts": { id: "r", groups: [{ id: "g", token_ids: [1], n: 2 }], sampling },
  "/init_weight_transfer_engine": { init_info: { rank_offset: 1, world_size: 3 } },
  "/start_weight_update": {},
  "/update_weights": { update_info: { weights_path: "/w" } },
  "/finish_weight_update": { weight_version: "v" },
  "/update_weight_version": { new_version: "v" },
  "/v1/load_lora_adapter": { lora_name: "a", lora_path: "/a", load_inplace: true },
  "/v1/unload_lora_adapter": { lora_name: "a" },
  "/collective_rpc": { method: "reload_weights", kwargs: { weights_path: "/w" } },
  "/abort_requests": { request_ids: ["a"] },
  "/reset_prefix_cache": {},
  "/weight_checker": { action: "checksum" },
};

type Mutation = { readonly at: number; readonly into: number; readonly value: unknown };

/** Changes one field, at the top or one level down, to something else; "__gone__" takes it away. */
function mutated(body: Readonly<Record<string, unknown>>, mutation: Mutation): unknown {
  const keys = Object.keys(body);
  const key = keys[mutation.at % Math.max(1, keys.length)] ?? "extra";
  const old = body[key];
  if (mutation.into % 2 === 1 && typeof old === "object" && old !== null && !Array.isArray(old)) {
    return { ...body, [key]: mutated(old as Record<string, unknown>, { ...mutation, into: 0 }) };
  }
  const { [key]: _gone, ...rest } = body;
  return mutation.value === "__gone__" ? rest : { ...rest, [key]: mutation.value };
}

const odd = fc.oneof(
  fc.constantFrom<unknown>("__gone__", null, true, -1, 0, 1.5, 2 ** 31, 1e300, "", [], {}, [[]]),
  fc.constantFrom<unknown>([-1], [1e9], ["a", 1], { a: null }, "\ud800", "x".repeat(2000)),
  fc.jsonValue(),
);

async function send(path: string, body: string): Promise<void> {
  const response = await fetch(new URL(path, sidecar.url), { method: "POST", body });
  const text = await response.text();
  const about = `POST ${path} ${body} -> ${response.status} ${text}`;
  expect(response.status, about).toBeLessThan(500);
  if (response.status < 400) return;
  const { error } = JSON.parse(text) as { error: Record<string, unknown> };
  expect(Object.keys(error).toSorted(), about).toEqual(["code", "message", "param", "type"]);
  expect(error.code, about).toBe(response.status);
  expect(typeof error.message, about).toBe("string");
}

test(
  "serve: no body gets a 5xx, and every refusal has vLLM's shape",
  async () => {
    const mutation = fc.record({ at: fc.nat(20), into: fc.nat(1), value: odd });
    for (const [path, good] of Object.entries(GOOD)) {
      await fc.assert(
        fc.asyncProperty(fc.oneof(mutation, fc.record({ raw: odd })), async (change) => {
          const body = "raw" in change ? change.raw : mutated(good, change);
          await send(path, JSON.stringify(body) ?? "");
        }),
        { numRuns: RUNS },
      );
    }
    expect(failures).toEqual([]);
  },
  TEST_MS,
);

test(
  "serve: what is right is still answered afterwards",
  async () => {
    await fetch(new URL("/resume", sidecar.url), { method: "POST" });
    for (const [path, good] of Object.entries(GOOD)) {
      // Simulated engines have no control plane.
      if (/weight|lora|rpc|cache/.test(path)) continue;
      // Their ids may be taken by what was tried before.
      const named = "id" in good ? { ...good, id: "new" } : good;
      const body = JSON.stringify(named);
      const response = await fetch(new URL(path, sidecar.url), { method: "POST", body });
      expect([path, response.status]).toEqual([path, 200]);
      await response.text();
    }
    const bug = await fetch(new URL("/v1/rollouts/nothing", sidecar.url));
    expect(bug.status).toBe(404);
    expect(failures).toEqual([]);
  },
  TEST_MS,
);

interface Operation {
  readonly parameters: readonly { readonly in: string }[];
  readonly responses: { readonly 200: { readonly content?: Readonly<Record<string, object>> } };
}

type Document = { readonly paths: Readonly<Record<string, { get?: Operation; post?: Operation }>> };

async function documented(): Promise<Document> {
  return (await (await fetch(new URL("/openapi.json", sidecar.url))).json()) as Document;
}

test("serve: the document tells of every path that is tried here", async () => {
  const { paths } = await documented();
  for (const path of Object.keys(GOOD)) {
    expect([path, paths[path]?.post !== undefined]).toEqual([path, true]);
  }
});

test("serve: every GET route answers in the documented form", async () => {
  for (const [path, { get }] of Object.entries((await documented()).paths)) {
    if (get === undefined || get.parameters.some((one) => one.in === "path")) continue;
    const answer = await fetch(new URL(path, sidecar.url));
    // Simulated engines have no control plane.
    if (answer.status === 404) continue;
    const types = Object.keys(get.responses[200].content ?? {});
    const type = answer.headers.get("content-type")?.split(";")[0] ?? null;
    expect([path, answer.status, type]).toEqual([path, 200, types[0] ?? null]);
    await answer.text();
  }
});
