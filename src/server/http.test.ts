// The HTTP server at its edges: bodies that are too long, packed or cut off, methods, the token, and sockets.

import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { connect } from "node:net";
import { deflateSync, gzipSync, zstdCompressSync } from "node:zlib";
import { AppError } from "../core/base/errors.ts";
import { BodyBudget } from "./body.ts";
import { type AccessEntry, type HttpServer, type Socket, serveHttp } from "./http.ts";
import { jsonResponse } from "./route.ts";

const BYTES_MAX = 1000;
const answered: AccessEntry[] = [];
const failures: unknown[] = [];
const sockets: Socket[] = [];
let server: HttpServer;
let nowMs = 0;
const budget = { bytesMax: 4 * BYTES_MAX, waitMsMax: 0, later: () => () => {}, nowMs: () => nowMs };
const bodies = new BodyBudget(budget);

beforeAll(() => {
  server = serveHttp({
    host: "127.0.0.1",
    port: 0,
    routes: [
      {
        method: "POST",
        path: "/echo",
        summary: "",
        handle: async (exchange) => jsonResponse({ body: await exchange.json() }),
      },
      {
        method: "POST",
        path: "/health",
        summary: "",
        right: "open",
        isProbe: true,
        handle: async ({ url, json, digest }) =>
          jsonResponse([url.pathname, url.search, await json(), await digest()]),
      },
      {
        method: "GET",
        path: "/things/:name",
        summary: "",
        handle: ({ params }) => jsonResponse(params),
      },
      {
        method: "GET",
        path: "/refused",
        summary: "",
        handle: () => {
          throw new AppError("queue_full", "full");
        },
      },
      {
        method: "GET",
        path: "/bug",
        summary: "",
        handle: () => {
          throw new Error("a bug");
        },
      },
    ],
    sockets: {
      "/socket": { open: (socket) => sockets.push(socket), message() {}, close() {}, drain() {} },
    },
    apiToken: "secret",
    bodyBytesMax: BYTES_MAX,
    bodies,
    frameBytesMax: 1000,
    answered: (entry) => answered.push(entry),
    failed: (error) => failures.push(error),
  });
});

afterAll(() => server.stop());

function call(path: string, init: RequestInit = {}): Promise<Response> {
  const headers = { authorization: "Bearer secret", ...init.headers };
  return fetch(new URL(path, server.url), { ...init, headers });
}

function post(
  body: string | Uint8Array<ArrayBuffer> | ReadableStream,
  headers: Record<string, string> = {},
): Promise<Response> {
  return call("/echo", { method: "POST", body, headers });
}

async function errorOf(response: Response): Promise<{ status: number; message: string }> {
  const { error } = (await response.json()) as { error: { message: string; code: number } };
  expect(error.code).toBe(response.status);
  return { status: response.status, message: error.message };
}

const small = JSON.stringify({ text: "small" });
const large = JSON.stringify({ text: "x".repeat(BYTES_MAX) });

describe("bodies", () => {
  test("body: one that is too long is a 413 that names the limit", async () => {
    expect(await errorOf(await post(large))).toEqual({
      status: 413,
      message: `the body has ${large.length} bytes, beyond the server's 1000 bytes`,
    });
  });

  test("body: one without a length is read up to the limit", async () => {
    const chunks = (text: string) =>
      new ReadableStream({
        start(controller) {
          for (const part of [text.slice(0, 10), text.slice(10)]) {
            controller.enqueue(new TextEncoder().encode(part));
          }
          controller.close();
        },
      });
    expect((await post(chunks(small))).status).toBe(200);
    const { status, message } = await errorOf(await post(chunks(large)));
    expect(status).toBe(413);
    expect(message).toContain("more than the server's 1000 bytes");
  });

  test.each([
    ["gzip", gzipSync],
    ["deflate", deflateSync],
    ["zstd", zstdCompressSync],
  ] as const)("body: %s is unpacked, up to the limit", async (encoding, pack) => {
    const headers = { "content-encoding": encoding };
    const answer = await post(new Uint8Array(pack(small)), headers);
    expect(await answer.json()).toEqual({ body: { text: "small" } });
    const { status } = await errorOf(await post(new Uint8Array(pack(large)), headers));
    expect(status).toBe(413);
  });

  test("body: what does not unpack is a 400, an unknown packing a 415", async () => {
    expect((await errorOf(await post(small, { "content-encoding": "gzip" }))).status).toBe(400);
    const { status, message } = await errorOf(await post(small, { "content-encoding": "rot13" }));
    expect(status).toBe(415);
    expect(message).toContain("rot13");
  });

  test("body: a length that is no number is a 400 that names it, and takes no room for good", async () => {
    const head = "POST /echo HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer secret\r\n";
    const lengths = `Content-Length: ${small.length}\r\n`.repeat(2);
    const answer = await rawAnswer(`${head}${lengths}\r\n${small}`);
    expect(answer).toStartWith("HTTP/1.1 400");
    expect(answer).toMatch(/^connection: close\r$/im);
    expect(bodies.used).toBe(0);
    expect((await post(small)).status).toBe(200);
  });

  test("body: a client that goes away in the middle is no failure of the server", async () => {
    const before = answered.length;
    const { hostname, port } = server.url;
    const head = `POST /echo HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer secret\r\n`;
    const socket = connect(Number(port), hostname);
    await new Promise((resolve) => socket.once("connect", resolve));
    socket.write(`${head}Content-Length: 500\r\n\r\n{"half":`, () => socket.destroy());
    while (answered.length === before) await Bun.sleep(5);
    expect(answered.at(-1)?.status).toBe(499);
    expect(failures).toEqual([]);
  });
});

describe("routes", () => {
  test("route: an open one sees nothing of a stranger's query and body", async () => {
    const answer = await fetch(new URL("/health?path=/proc/self/cwd", server.url), {
      method: "POST",
      body: "{ not JSON",
    });
    expect(await answer.json()).toEqual(["/health", "", null, ""]);
  });

  test("route: a probe says no when bodies have found no room for too long", async () => {
    const asked = async () => (await call("/health", { method: "POST" })).status;
    const { signal } = new AbortController();
    const room = await bodies.take(4 * BYTES_MAX, signal);
    nowMs += 110_000;
    expect(await asked()).toBe(200);
    nowMs += 20_000;
    const answer = await errorOf(await call("/health", { method: "POST" }));
    expect(answer).toEqual({ status: 500, message: "no request body has found room for 130 s" });
    room.release();
    expect(await asked()).toBe(200);
  });

  test("route: HEAD is answered as GET, without a body", async () => {
    const answer = await call("/things/a%20b", { method: "HEAD" });
    expect([answer.status, await answer.text()]).toEqual([200, ""]);
    expect(await (await call("/things/a%20b")).json()).toEqual({ name: "a b" });
  });

  test("route: another method is a 405 that tells which there are", async () => {
    const answer = await call("/echo", { method: "PUT" });
    expect(answer.headers.get("allow")).toBe("POST");
    expect((await errorOf(answer)).status).toBe(405);
  });

  test("route: a slash at the end is none, with its method, body and right", async () => {
    expect(await (await call("/things/a/")).json()).toEqual({ name: "a" });
    const answer = await call("/echo//?x=/", { method: "POST", body: small });
    expect(await answer.json()).toEqual({ body: { text: "small" } });
    expect((await fetch(new URL("/echo/", server.url), { method: "POST" })).status).toBe(401);
    expect((await call("/")).status).toBe(404);
  });

  test("route: an unknown path is a 404; doubled slashes are one", async () => {
    expect((await errorOf(await call("/nothing"))).status).toBe(404);
    expect((await call(`${server.url.origin}//things//a`)).status).toBe(200);
  });

  test("route: a condition has its status and a Retry-After", async () => {
    const answer = await call("/refused");
    expect(answer.headers.get("retry-after")).toBe("1");
    expect((await errorOf(answer)).status).toBe(429);
  });

  test("route: a bug is a 500, and reported", async () => {
    expect((await errorOf(await call("/bug"))).status).toBe(500);
    expect(failures.splice(0)).toHaveLength(1);
  });
});

describe("sockets", () => {
  test("socket: a plain GET gets a 426", async () => {
    const answer = await call("/socket");
    expect(answer.headers.get("upgrade")).toBe("websocket");
    expect((await errorOf(answer)).status).toBe(426);
  });
});

/** The bytes of an answer, read from a socket until the server closes it or has answered. */
async function rawAnswer(head: string): Promise<string> {
  const received: Buffer[] = [];
  const done = Promise.withResolvers<void>();
  const isAnswered = () => Buffer.concat(received).toString().includes("\r\n\r\n");
  const socket = await Bun.connect({
    hostname: server.url.hostname,
    port: Number(server.url.port),
    socket: {
      data: (_, bytes) => {
        received.push(Buffer.from(bytes));
        if (isAnswered()) done.resolve();
      },
      close: () => done.resolve(),
    },
  });
  socket.write(head);
  await done.promise;
  socket.end();
  return Buffer.concat(received).toString();
}

test.each(["/echo", "/full", "/nowhere"])(
  "connection: a client that wants it closed reads in the answer of %s that it will be",
  async (path) => {
    const head = `POST ${path} HTTP/1.1\r\nhost: ${server.url.host}\r\nauthorization: Bearer secret\r\ncontent-type: application/json\r\ncontent-length: 2\r\n`;
    const closed = await rawAnswer(`${head}Connection: Close\r\n\r\n{}`);
    expect(closed).toMatch(/^connection: close\r$/im);
    const kept = await rawAnswer(`${head}\r\n{}`);
    expect(kept).toStartWith("HTTP/1.1 ");
    expect(kept).not.toMatch(/^connection: close\r$/im);
  },
);
