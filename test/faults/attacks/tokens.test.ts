// Attacks by an engine: a stand-in for vLLM sends tokens beyond the vocabulary, logprobs that are none, wrong counts,
// garbage in place of events, and closes the connection at any byte. What must hold: the one request that meets it ends
// with an error that says so, within a deadline; every other one gets exactly its tokens; the sidecar stays in service.
// Repeat a failure with SEED=n bun test <this file>.

import { afterAll, beforeAll, expect, test } from "bun:test";
import http from "node:http";
import type { AddressInfo } from "node:net";
import net from "node:net";
import { fold32 } from "../../../src/core/base/hash.ts";
import { startSidecar } from "../../../src/serve.ts";
import type { RunningSidecar } from "../../../src/serve-options.ts";
import { collecting, serveOptions, vllmSource } from "../../suite/serve-fixture.ts";
import { type FaultKind, LIE_KINDS } from "../stand-in/faults.ts";
import { EOS, standInResponse } from "../stand-in/tokens.ts";
import { VllmStandIn } from "../stand-in/vllm-stand-in.ts";
import { rounds } from "./scale.ts";

const SEED = Number(process.env.SEED ?? 1);
const DEADLINE_MS = 30_000;
const TOKENS = 12;
/** A prompt that begins with this token meets the lie whose number follows, after so many tokens. */
const POISON = 999;
const LIES: readonly FaultKind[] = LIE_KINDS;

const LIMITS = { retryMs: 1, retryMsMax: 4, stallMs: 500, pollMs: 100, checkMsMax: 2_000 };
const failures: unknown[] = [];
let standIns: VllmStandIn[] = [];
let sidecar: RunningSidecar;

async function sidecarOver(urls: readonly string[]): Promise<RunningSidecar> {
  const sources = urls.map((url) => vllmSource(url, LIMITS));
  return await startSidecar(
    serveOptions({ sources, chunkTokens: 5, retryGraceMs: 1_000, events: collecting(failures) }),
  );
}

beforeAll(async () => {
  standIns = await Promise.all(
    (["enabled", "disabled"] as const).map((generate) =>
      VllmStandIn.start({
        generate,
        faults: (_, [first, number = 0, afterTokens = 0]) => {
          const kind = first === POISON ? LIES[number] : undefined;
          return kind === undefined ? null : { kind, afterTokens };
        },
      }),
    ),
  );
  sidecar = await sidecarOver(standIns.map(({ url }) => url));
});

afterAll(async () => {
  await sidecar.stop();
  await Promise.all(standIns.map((standIn) => standIn.stop()));
});

async function post(path: string, body: object, base = sidecar.url): Promise<Response> {
  const signal = AbortSignal.timeout(DEADLINE_MS);
  return await fetch(new URL(path, base), { method: "POST", body: JSON.stringify(body), signal });
}

function expectedOf(prompt: readonly number[]): number[] {
  return standInResponse({
    prompt,
    sample: 0,
    tokensMin: 0,
    tokensMax: TOKENS,
    stopTokenIds: [EOS],
  });
}

/** What each kind of client is told of a request: its tokens, or an error. */
type Told = { tokens: number[] } | { status: number; message: string };
type Client = (prompt: readonly number[], base?: URL) => Promise<Told>;

interface Body {
  readonly choices?: { token_ids?: number[] }[];
  readonly token_ids?: number[];
  readonly error?: { message: string; code?: number };
}

const completion: Client = async (prompt, base) => {
  const body = { prompt, max_tokens: TOKENS, return_token_ids: true, logprobs: 1 };
  const answer = (await (await post("/v1/completions", body, base)).json()) as Body;
  if (answer.error !== undefined)
    return { status: answer.error.code ?? 0, message: answer.error.message };
  return { tokens: answer.choices?.[0]?.token_ids ?? [] };
};

const streamed: Client = async (prompt, base) => {
  const body = { prompt, max_tokens: TOKENS, return_token_ids: true, stream: true };
  const text = await (await post("/v1/completions", body, base)).text();
  const tokens: number[] = [];
  for (const line of text.split("\n")) {
    if (!line.startsWith("data: {")) continue;
    const event = JSON.parse(line.slice(6)) as Body;
    if (event.error !== undefined)
      return { status: event.error.code ?? 0, message: event.error.message };
    tokens.push(...(event.choices?.[0]?.token_ids ?? []));
  }
  expect(text.trimEnd().endsWith("data: [DONE]")).toBe(true);
  return { tokens };
};

const rollout: Client = async (prompt, base) => {
  const body = {
    groups: [{ id: "g", token_ids: prompt, n: 1 }],
    sampling_params: { max_tokens: TOKENS },
  };
  const [line] = (await (await post("/v1/rollouts", body, base)).text()).split("\n");
  const answer = JSON.parse(line ?? "") as Body;
  if (answer.error !== undefined) return { status: 502, message: answer.error.message };
  return { tokens: answer.token_ids ?? [] };
};

const CLIENTS = [completion, streamed, rollout];

/** Follows all responses, as the page does. */
async function follower(): Promise<WebSocket> {
  const socket = new WebSocket(new URL("/v1/stream", sidecar.url.href.replace("http", "ws")));
  await new Promise((resolve) => socket.addEventListener("open", resolve));
  socket.send(JSON.stringify({ subscribe: { all: true } }));
  return socket;
}

test(
  "lies of an engine: the request that meets one fails with an error, all others get their tokens",
  async () => {
    const socket = await follower();
    const trials = rounds(2, 40);
    for (let trial = 0; trial < trials; trial += 1) {
      const seed = fold32(SEED, trial);
      const asks = LIES.flatMap((kind, number) =>
        CLIENTS.map((client, c) => {
          const mark = 1 + (fold32(seed, number * 8 + c) % 900);
          const after = fold32(seed, mark) % (TOKENS - 2);
          return {
            kind,
            client,
            bad: [POISON, number, after, trial, mark, c],
            good: [trial, mark, c, number],
          };
        }),
      );
      const startMs = performance.now();
      const told = await Promise.all(
        asks.map(async ({ kind, client, bad, good }) => {
          const [badTold, goodTold] = await Promise.all([client(bad), client(good)]);
          return { kind, bad, badTold, good, goodTold };
        }),
      );
      const tookMs = performance.now() - startMs;
      for (const { kind, bad, badTold, good, goodTold } of told) {
        const where = `SEED=${SEED} trial ${trial} ${kind} ${bad}`;
        expect({ where, told: goodTold }).toEqual({ where, told: { tokens: expectedOf(good) } });
        // What was lost on the way is asked for again, and a short response may end before the engine lies.
        if ("tokens" in badTold) {
          expect({ where, told: badTold }).toEqual({ where, told: { tokens: expectedOf(bad) } });
        } else {
          expect({ where, status: badTold.status }).toEqual({ where, status: 502 });
          expect(badTold.message.length).toBeGreaterThan(10);
        }
      }
      expect(tookMs).toBeLessThan(DEADLINE_MS);
      expect((await fetch(new URL("/health", sidecar.url))).status).toBe(200);
    }
    expect(socket.readyState).toBe(WebSocket.OPEN);
    socket.close();
    expect(sidecar.sidecar.rollout.unfinished).toBe(0);
    expect(failures).toEqual([]);
  },
  rounds(60_000, 600_000),
);

test("a wild token in a text answer: 502 that names worker, token and bound; the next answer comes at once", async () => {
  const told = await completion([POISON, LIES.indexOf("wild_token"), 1, 3]);
  expect(told).toMatchObject({ status: 502 });
  const message = "message" in told ? told.message : "";
  expect(message).toMatch(
    /^http:\/\/127\.0\.0\.1:\d+ gave token 6000 at position 1, not in 0\.\.1000$/,
  );
  const startMs = performance.now();
  expect(await completion([4, 4])).toEqual({ tokens: expectedOf([4, 4]) });
  expect(performance.now() - startMs).toBeLessThan(10_000);
});

/** A proxy that closes its `n`th stream after so many bytes of the answer. */
async function cuttingProxy(target: string, bytesAt: (connection: number) => number | null) {
  let connections = 0;
  const { port: targetPort } = new URL(target);
  const server = net.createServer((client) => {
    const up = net.connect(Number(targetPort), "127.0.0.1");
    let left: number | null = null;
    client.on("data", (data: Buffer) => {
      if (data.includes('"stream":true')) {
        left = bytesAt(connections);
        connections += 1;
      }
      up.write(data);
    });
    up.on("data", (data: Buffer) => {
      if (left === null) {
        client.write(data);
        return;
      }
      client.write(data.subarray(0, left));
      left -= data.length;
      if (left > 0) return;
      client.destroy();
      up.destroy();
    });
    for (const [one, other] of [
      [client, up],
      [up, client],
    ] as const) {
      one.on("error", () => other.destroy());
      one.on("close", () => other.destroy());
    }
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    close: () => server.close(),
  };
}

test(
  "an engine that closes at every byte: every response comes whole, or its request ends with an error",
  async () => {
    const standIn = await VllmStandIn.start();
    let cuts = 0;
    const step = rounds(29, 1);
    // The first streams are the probe's own.
    const proxy = await cuttingProxy(standIn.url, (connection) => {
      if (connection < 2 || connection % 2 === 0) return null;
      cuts += 1;
      return 1 + ((cuts * step) % 4_000);
    });
    const over = await sidecarOver([proxy.url]);
    const trials = rounds(60, 2_000);
    for (let trial = 0; trial < trials; trial += 1) {
      const prompt = [5, trial % 900, Math.floor(trial / 900)];
      const client = CLIENTS[trial % CLIENTS.length] ?? completion;
      const told = await client(prompt, over.url);
      expect({ trial, told }).toEqual({ trial, told: { tokens: expectedOf(prompt) } });
    }
    expect(cuts).toBeGreaterThan(trials / 4);
    await over.stop();
    proxy.close();
    await standIn.stop();
  },
  rounds(240_000, 600_000),
);

test("an engine that answers its streams with endless bytes: the request ends, memory is bounded", async () => {
  const standIn = await VllmStandIn.start();
  // Everything is the stand-in's but the streams, which never end a line.
  const server = http.createServer((request, response) => {
    const parts: Buffer[] = [];
    request.on("data", (part: Buffer) => parts.push(part));
    request.on("end", async () => {
      const body = Buffer.concat(parts);
      const isFlood = body.includes(`[${POISON},6]`);
      if (isFlood) {
        response.writeHead(200, { "content-type": "text/event-stream" });
        const flood = Buffer.alloc(1 << 20, "x");
        const pour = () => {
          while (!response.destroyed && response.write(flood)) {}
        };
        response.on("drain", pour);
        pour();
        return;
      }
      const init = request.method === "POST" ? { method: "POST", body } : {};
      const answer = await fetch(standIn.url + request.url, init).catch(() => null);
      if (answer === null) {
        response.destroy();
        return;
      }
      response.writeHead(answer.status, {
        "content-type": answer.headers.get("content-type") ?? "",
      });
      response.end(Buffer.from(await answer.arrayBuffer()));
    });
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  const over = await sidecarOver([url]);
  const before = process.memoryUsage().rss;
  const [bad, good] = await Promise.all([
    completion([POISON, 6], over.url),
    completion([6, 1], over.url),
  ]);
  expect(good).toEqual({ tokens: expectedOf([6, 1]) });
  expect(bad).toMatchObject({ status: 502 });
  expect((process.memoryUsage().rss - before) / 2 ** 20).toBeLessThan(400);
  await over.stop();
  server.closeAllConnections();
  server.close();
  await standIn.stop();
}, 180_000);
