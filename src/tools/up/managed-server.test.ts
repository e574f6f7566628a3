// Keeps real programs running: small HTTP servers that end, hang or never become healthy when they are told to.

import { afterAll, expect, test } from "bun:test";
import { join } from "node:path";
import { behindDeadProxy } from "../../../test/suite/dead-proxy.ts";
import { temporaryFolder } from "../../../test/suite/temporary-folder.ts";
import { ManagedServer, type ServerEvent, type ServerSpec } from "./managed-server.ts";
import { freePort } from "./ports.ts";

const HOST = "127.0.0.1";
const folder = temporaryFolder("managed");
const started: ManagedServer[] = [];

afterAll(async () => {
  await Promise.all(started.map((server) => server.stop()));
});

/** Healthy at once; ends with 9 when it is asked for /end. */
const GOOD = `
  console.log("I listen");
  Bun.serve({ hostname: "${HOST}", port: Number(process.env.PORT), fetch(request) {
    if (new URL(request.url).pathname === "/end") { console.log("I was told to end"); process.exit(9); }
    return new Response("ok");
  } });`;

function manage(script: string, more: Partial<ServerSpec> = {}) {
  const port = freePort(HOST);
  const events: ServerEvent[] = [];
  const wakers = new Set<() => void>();
  const server = new ManagedServer(
    {
      name: "it",
      url: `http://${HOST}:${port}`,
      command: [process.execPath, "-e", script],
      env: { ...process.env, PORT: String(port) },
      logPath: join(folder, `${port}.log`),
      startMsMax: 60_000,
      graceMs: 1000,
      backoff: { firstMs: 1, msMax: 1, goodMs: 1e9, failuresMax: 2 },
      ...more,
    },
    (event) => {
      events.push(event);
      for (const wake of wakers) wake();
    },
  );
  started.push(server);
  /** Resolves when the nth event of the kind has come. */
  const heard = (kind: ServerEvent["kind"], count = 1): Promise<void> =>
    new Promise((resolve) => {
      const look = () => {
        if (events.filter((event) => event.kind === kind).length < count) return;
        wakers.delete(look);
        resolve();
      };
      wakers.add(look);
      look();
    });
  return { server, events, heard };
}

test("start: resolves when the server is healthy", async () => {
  const { server, events } = manage(GOOD);
  // Its health is asked for without the environment's proxy.
  await behindDeadProxy(() => server.start());
  expect((await fetch(server.spec.url)).status).toBe(200);
  expect(events.map(({ kind }) => kind)).toEqual(["started", "healthy"]);
  await server.stop();
  expect(server.pid).toBeNull();
  await expect(fetch(server.spec.url)).rejects.toThrow();
});

test("a server that dies is reported with its last lines, restarted, and given up in the end", async () => {
  const { server, events, heard } = manage(GOOD);
  await server.start();
  for (let run = 1; run <= 3; run += 1) {
    await heard("healthy", run);
    await fetch(`${server.spec.url}/end`).catch(() => null);
    await heard("died", run);
  }
  await heard("gave_up");
  const [died] = events.filter((event) => event.kind === "died");
  expect(died).toEqual({
    kind: "died",
    how: "exit status 9",
    lines: ["I listen", "I was told to end"],
  });
  expect(server.pid).toBeNull();
  // Each end takes 2 s where nobody reaps the group's guard.
}, 180_000);

test("start: one that ends before it is healthy is an error with its log's last lines", async () => {
  const { server } = manage('console.error("no such model"); process.exit(4);');
  await expect(server.start()).rejects.toThrow(/it ended with exit status 4\n {2}no such model/);
});

test("start: one that is not healthy in time is killed", async () => {
  const { server } = manage("setInterval(() => {}, 1000);", { startMsMax: 1 });
  await expect(server.start()).rejects.toThrow("it was not healthy after");
});
