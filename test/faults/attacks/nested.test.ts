// Attacks the stack: JSON nested 200,000 deep in every body, in a frame of /v1/stream, and in what a server answers. Each is refused by itself, and the sidecar goes on.

import { afterAll, beforeAll, expect, test } from "bun:test";
import { join } from "node:path";
import { ROOT } from "../../e2e/tool.ts";
import { VllmStandIn } from "../stand-in/vllm-stand-in.ts";
import { Victim } from "./edge-bed.ts";
import { rounds } from "./scale.ts";

const DEPTHS = [200_000, 129, 5_000, 5_000_000].slice(0, rounds(1, 4));
let server: VllmStandIn;
let victim: Victim;

beforeAll(async () => {
  server = await VllmStandIn.start({});
  const tokenizer = join(ROOT, "test", "fixtures", "foretoken-3m-hf");
  victim = await Victim.start("--worker", server.url, "--tokenizer", tokenizer);
}, 180_000);

afterAll(async () => {
  await victim?.stop();
  await server?.stop();
});

const lists = (depth: number) => "[".repeat(depth) + "]".repeat(depth);
const objects = (depth: number) => `${'{"a":'.repeat(depth)}1${"}".repeat(depth)}`;

async function expectRefused(path: string, body: string): Promise<void> {
  const answer = await victim.post(path, body);
  const text = await answer.text();
  expect([path, answer.status, text.slice(0, 200)]).toEqual([
    path,
    400,
    expect.stringContaining("nested more than 128 levels deep"),
  ]);
}

async function expectServing(): Promise<void> {
  expect(victim.exitCode).toBeNull();
  expect(await victim.goodTokens()).toHaveLength(16);
}

/** These look at none. */
const WITHOUT_BODY = new Set([
  "/pause",
  "/resume",
  "/ping",
  "/abort_weight_update",
  "/remove_worker",
]);

test("nested: no route that reads a body takes one", async () => {
  const document = await fetch(new URL("/openapi.json", victim.url));
  const { paths } = (await document.json()) as { paths: Record<string, object> };
  for (const [path, methods] of Object.entries(paths)) {
    if (!("post" in methods) || WITHOUT_BODY.has(path)) continue;
    for (const depth of DEPTHS) await expectRefused(path, lists(depth));
    await expectRefused(path, objects(DEPTHS[0] ?? 0));
  }
  await expectServing();
}, 180_000);

test("nested: a frame of the stream closes that connection alone", async () => {
  for (const depth of DEPTHS.filter((one) => one < 500_000)) {
    const socket = new WebSocket(new URL("/v1/stream", victim.url.href.replace("http", "ws")));
    const closed = new Promise<number>((resolve) => {
      socket.onclose = ({ code }) => resolve(code);
    });
    await new Promise((resolve) => {
      socket.onopen = resolve;
    });
    socket.send(`{"subscribe":${lists(depth)}}`);
    expect(await closed).toBe(1007);
  }
  await expectServing();
});

test("nested: what a server answers to a control call is passed on, or is an error", async () => {
  for (const depth of DEPTHS) {
    const engine = Bun.serve({
      port: 0,
      hostname: "127.0.0.1",
      fetch: async (request) => {
        const { pathname, search } = new URL(request.url);
        if (pathname === "/collective_rpc") return new Response(lists(depth), { status: 400 });
        const body = request.method === "POST" ? await request.text() : null;
        return await fetch(`${server.url}${pathname}${search}`, {
          method: request.method,
          headers: { "content-type": "application/json" },
          body,
        });
      },
    });
    const tokenizer = join(ROOT, "test", "fixtures", "foretoken-3m-hf");
    const other = await Victim.start("--worker", engine.url.origin, "--tokenizer", tokenizer);
    const answer = await other.post("/collective_rpc", { method: "some_method" });
    expect(answer.status).toBeGreaterThanOrEqual(400);
    await answer.arrayBuffer();
    expect(await other.goodTokens()).toHaveLength(16);
    expect(other.exitCode).toBeNull();
    await other.stop();
    await engine.stop(true);
  }
}, 180_000);
