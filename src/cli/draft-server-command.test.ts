// The command as a process: it says where it listens, serves, and leaves when told to.

import { expect, test } from "bun:test";
import { join } from "node:path";
import type { Command } from "commander";
import { WebSocket } from "ws";
import { decodeServerMessage, encodeClientMessage } from "../../test/suite/draft-client.ts";
import { DRAFT_PROTOCOL_VERSION } from "../core/draft/service/limits.ts";
import { draftServerCommand } from "./draft-server-command.ts";

const MODULE = join(import.meta.dir, "draft-server-command.ts");
const RUN = `
  import { draftServerCommand } from ${JSON.stringify(MODULE)};
  await draftServerCommand((status) => { process.exitCode = status; })
    .parseAsync(process.argv.slice(1), { from: "user" });
`;

test("draft-server: prints its address, serves, and closes its connections at Ctrl-C", async () => {
  const child = Bun.spawn([process.execPath, "-e", RUN, "--", "--port", "0"], {
    stdout: "pipe",
    stderr: "inherit",
  });
  let text = "";
  const isListening = Promise.withResolvers<void>();
  const reading = (async () => {
    for await (const part of child.stdout) {
      text += new TextDecoder().decode(part);
      if (text.includes("\n")) isListening.resolve();
    }
  })();
  await isListening.promise;
  const first = text;
  expect(first).toMatch(/^draft server on ws:\/\/127\.0\.0\.1:\d+\/v1\/draft\n$/);
  const socket = new WebSocket(first.trim().replace("draft server on ", ""));
  const closed = new Promise<number>((resolve) => socket.once("close", resolve));
  const answer = new Promise<Uint8Array>((resolve) => socket.once("message", resolve));
  await new Promise((resolve) => socket.once("open", resolve));
  socket.send(encodeClientMessage({ kind: "hello", protocolVersion: DRAFT_PROTOCOL_VERSION }));
  expect(decodeServerMessage(await answer)).toMatchObject({ kind: "welcome" });
  child.kill("SIGINT");
  expect(await closed).toBe(1001);
  await reading;
  expect(await child.exited).toBe(0);
});

test("draft-server: an address in use is named", async () => {
  const taken = Bun.serve({ port: 0, hostname: "127.0.0.1", fetch: () => new Response() });
  const command: Command = draftServerCommand(() => {}).exitOverride();
  const run = command.parseAsync(["--port", String(taken.port)], { from: "user" });
  await expect(run).rejects.toThrow(`127.0.0.1:${taken.port}: the port is in use`);
  await taken.stop(true);
});
