// One server's answers as they come over the wire, of servers that are none of vLLM's.

import { expect, onTestFinished, test } from "bun:test";
import net from "node:net";
import type { TimerClock } from "./clock.ts";
import { wallTimers } from "./clock.ts";
import { HttpClient } from "./http.ts";

/** A server that answers every request with `text`, and then holds the connection. */
async function answering(text: string, clock: TimerClock = wallTimers): Promise<HttpClient> {
  const sockets = new Set<net.Socket>();
  const server = net.createServer((socket) => {
    sockets.add(socket);
    socket.on("error", () => {});
    socket.once("data", () => socket.write(text));
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address() as net.AddressInfo;
  const url = `http://127.0.0.1:${port}`;
  const client = new HttpClient({ url, apiKey: null, clock, answerBytesMax: 1000 });
  onTestFinished(() => {
    client.close();
    for (const socket of sockets) socket.destroy();
    server.close();
  });
  return client;
}

const POST = { method: "POST", path: "/v1/completions", body: "{}" } as const;

function ended(client: HttpClient): Promise<unknown[]> {
  return new Promise((resolve) => {
    client.stream(POST, {
      data: () => {},
      ended: (message) => resolve(["ended", message]),
      refused: (status, body) => resolve(["refused", status, body]),
    });
  });
}

const UPGRADE = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n";

test("http: an answer that changes the protocol ends a stream and a question at once", async () => {
  expect(await ended(await answering(UPGRADE))).toEqual([
    "ended",
    expect.stringContaining("unanswered"),
  ]);
  const answer = await (await answering(UPGRADE)).answer(POST, 60_000);
  expect(answer).toMatchObject({
    kind: "unreachable",
    message: expect.stringContaining("unanswered"),
  });
  const bare = await answering("HTTP/1.1 101 Switching Protocols\r\n\r\n");
  expect(await ended(bare)).toEqual(["refused", 101, ""]);
});

test("http: a refusal whose body does not end is given up when its time is over", async () => {
  const due: (() => void)[] = [];
  const clock: TimerClock = {
    ...wallTimers,
    after: (_ms, act) => {
      due.push(act);
      return () => {};
    },
  };
  const client = await answering("HTTP/1.1 500 No\r\nContent-Length: 9\r\n\r\nhalf", clock);
  const outcome = ended(client);
  while (due.length === 0) await new Promise((resolve) => setImmediate(resolve));
  for (const act of due) act();
  expect(await outcome).toEqual(["ended", "the connection was closed"]);
});
