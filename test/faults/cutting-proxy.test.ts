// Over real sockets: every byte comes, in order, however the link is slowed, held and cut.

import { expect, test } from "bun:test";
import { connect, createServer, type Socket } from "node:net";
import { CuttingProxy } from "./cutting-proxy.ts";

async function echo(): Promise<{ port: number; close: () => void }> {
  const server = createServer((socket) => socket.pipe(socket).on("error", () => undefined));
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const address = server.address();
  const port = typeof address === "object" ? (address?.port ?? 0) : 0;
  return { port, close: () => server.close() };
}

async function dialed(port: number): Promise<{ socket: Socket; received: () => string }> {
  const socket = connect(port, "127.0.0.1");
  let text = "";
  socket.on("data", (bytes: Uint8Array) => {
    text += new TextDecoder().decode(bytes);
  });
  socket.on("error", () => undefined);
  await new Promise((resolve) => socket.once("connect", resolve));
  return { socket, received: () => text };
}

async function until(isTrue: () => boolean): Promise<void> {
  for (let i = 0; i < 1000 && !isTrue(); i += 1) await Bun.sleep(5);
  expect(isTrue()).toBe(true);
}

test("a link that is slowed and held delivers every byte in order", async () => {
  const server = await echo();
  const proxy = await CuttingProxy.listen(() => server.port);
  const { socket, received } = await dialed(proxy.port);
  let sent = "";
  const send = (text: string) => {
    sent += text;
    socket.write(text);
  };
  proxy.slow(40);
  for (let i = 0; i < 50; i += 1) send(`${i},`);
  proxy.heal();
  for (let i = 0; i < 50; i += 1) send(`${i};`);
  await until(() => received() === sent);
  proxy.stall();
  expect(proxy.isBroken).toBe(true);
  send("held");
  await Bun.sleep(50);
  expect(received()).not.toContain("held");
  proxy.heal();
  await until(() => received() === sent);
  socket.destroy();
  await proxy.close();
  server.close();
});

test("a cut ends connections and refuses new ones until it is healed", async () => {
  const server = await echo();
  const proxy = await CuttingProxy.listen(() => server.port);
  const first = await dialed(proxy.port);
  proxy.refuse();
  await until(() => first.socket.destroyed);
  const second = await dialed(proxy.port);
  await until(() => second.socket.destroyed);
  proxy.heal();
  const third = await dialed(proxy.port);
  third.socket.write("again");
  await until(() => third.received() === "again");
  third.socket.destroy();
  await proxy.close();
  server.close();
});
