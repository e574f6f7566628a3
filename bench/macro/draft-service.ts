// What one draft server carries: deltas and tokens a second between 1, 4 and 16 clients, beside an echo
// server in the same run that takes as many frames and bytes and gives back as many. The server is a
// process of its own; the clients share one, and keep logs but no suffix trees. Each writes its share
// of every group's responses and fetches all the rest; the clock stops when everybody has everything.
//
//   bun bench/macro/draft-service.ts [--clients 1,4,16] [--groups 16] [--tokens 8192] [--json FILE]

import { writeFileSync } from "node:fs";
import { cpus } from "node:os";
import { parseArgs } from "node:util";
import Table from "cli-table3";
import { WebSocket, WebSocketServer } from "ws";
import { assert } from "../../src/base/assert.ts";
import { groupId, weightEpoch } from "../../src/base/ids.ts";
import { Replica } from "../../src/draft/replica.ts";
import { DraftClient } from "../../src/draft/service/client.ts";
import { DraftServer, type DraftServerStats } from "../../src/draft/service/server.ts";
import { socketDial } from "../../src/server/draft-client.ts";
import { DraftService, type DraftServiceStats } from "../../src/server/draft-service.ts";

export interface DraftServiceShape {
  readonly clients: number;
  readonly groups: number;
  /** Of each of a group's 16 responses. */
  readonly tokens: number;
}

export interface DraftServiceRow {
  readonly clients: number;
  readonly deltas_in_per_s: number;
  readonly deltas_out_per_s: number;
  readonly tokens_in_per_s: number;
  readonly tokens_out_per_s: number;
  readonly frames_per_s: number;
  /** CPU of the server's process, for each delta in or out, and as a share of the run. */
  readonly server_us_per_delta: number;
  readonly server_cpu_share: number;
  /** The echo's frames a second, at as many bytes a frame. */
  readonly echo_frames_per_s: number;
  /** frames_per_s over echo_frames_per_s. */
  readonly ratio: number;
}

/** What a server process tells of itself. */
type ServerReport = { cpuUs: number; server: DraftServerStats; service: DraftServiceStats };
type FromServer = { kind: "listening"; url: string } | { kind: "report"; report: ServerReport };

interface Served {
  readonly url: string;
  report(): Promise<ServerReport>;
  stop(): Promise<void>;
}

const SAMPLES = 16;
/** Tokens that an engine makes of a response between two flushes: some steps, with drafts. */
const STEP_TOKENS = 16;
const EPOCH = weightEpoch(0);
const PROMPT = Int32Array.from({ length: 512 }, (_, i) => i);
/** Frames under way on each connection of the echo: as many as a draft client allows itself. */
const IN_FLIGHT = 32;

const turn = () => new Promise<void>((resolve) => setImmediate(resolve));

/** Runs the shape on a server process of its own, then the echo of its traffic on another. */
export async function measure(shape: DraftServiceShape): Promise<DraftServiceRow> {
  const served = await spawnServer("service");
  const idle = await served.report();
  const seconds = await share(served.url, shape);
  const { cpuUs, server, service } = await served.report();
  await served.stop();
  const echo = await spawnServer("echo");
  const frames = service.framesReceived;
  const bytes = Math.round((service.bytesReceived + service.bytesSent) / 2 / frames);
  const echoSeconds = await echoAll(echo.url, { clients: shape.clients, frames, bytes });
  await echo.stop();
  const usedUs = cpuUs - idle.cpuUs;
  return {
    clients: shape.clients,
    deltas_in_per_s: server.deltasTaken / seconds,
    deltas_out_per_s: server.deltasFetched / seconds,
    tokens_in_per_s: server.tokensTaken / seconds,
    tokens_out_per_s: server.tokensFetched / seconds,
    frames_per_s: frames / seconds,
    server_us_per_delta: usedUs / (server.deltasTaken + server.deltasFetched),
    server_cpu_share: usedUs / 1e6 / seconds,
    echo_frames_per_s: frames / echoSeconds,
    ratio: echoSeconds / seconds,
  };
}

/** Seconds until every client has every token. */
async function share(url: string, shape: DraftServiceShape): Promise<number> {
  const ids = Array.from({ length: shape.groups }, (_, i) => groupId(`prompt-${i}`));
  const log = Int32Array.from({ length: shape.tokens }, (_, i) => (i * 7919) % 150_000);
  const clients = Array.from({ length: shape.clients }, (_, clientId) => newClient(url, clientId));
  for (const client of clients) {
    for (const id of ids) client.registerGroup(id, { prompt: PROMPT, ttlMs: 3_600_000 });
  }
  const stats = (client: DraftClient) => client.stats().servers[0];
  while (!clients.every((client) => stats(client)?.isReady)) await pollAll(clients);
  const total = shape.groups * SAMPLES * shape.tokens;
  const own = clients.map((_, c) => samplesOf(c, shape.clients).length * shape.groups);
  const made = clients.map(() => 0);
  const startMs = performance.now();
  for (let isDone = false; !isDone; ) {
    isDone = true;
    for (const [c, client] of clients.entries()) {
      const samples = own[c] ?? 0;
      const offset = made[c] ?? 0;
      const { tokensSent = 0, tokensFetched = 0 } = stats(client) ?? {};
      if (tokensFetched < total - samples * shape.tokens) isDone = false;
      if (tokensSent < samples * offset) isDone = false;
      else if (offset < shape.tokens) {
        isDone = false;
        const tokens = log.subarray(offset, offset + STEP_TOKENS);
        for (const id of ids) {
          for (const sampleIndex of samplesOf(c, shape.clients)) {
            client.append(id, { sampleIndex, offset, tokens });
          }
        }
        made[c] = offset + tokens.length;
      }
    }
    await pollAll(clients);
  }
  const seconds = (performance.now() - startMs) / 1000;
  for (const client of clients) client.close();
  return seconds;
}

/** The replicas have no room for a tree: engines pay for those, not the service. */
function newClient(url: string, clientId: number): DraftClient {
  return new DraftClient({
    drafter: new Replica({ limitBytes: 1 << 16 }),
    servers: [{ name: "server", dial: socketDial({ url }) }],
    clientId,
    epoch: EPOCH,
    nowMs: performance.now(),
    limits: { flushMs: 0, fetchMs: 0, bytesMax: 2 ** 31 },
  });
}

const samplesOf = (client: number, clients: number) =>
  Array.from({ length: SAMPLES }, (_, i) => i).filter((i) => i % clients === client);

async function pollAll(clients: readonly DraftClient[]): Promise<void> {
  const nowMs = performance.now();
  for (const client of clients) client.poll(nowMs);
  await turn();
}

/** Seconds until `frames` frames have gone there and come back, over all connections. */
async function echoAll(
  url: string,
  shape: { clients: number; frames: number; bytes: number },
): Promise<number> {
  const frame = new Uint8Array(shape.bytes);
  const sockets = Array.from(
    { length: shape.clients },
    () => new WebSocket(url, { perMessageDeflate: false }),
  );
  for (const socket of sockets) await new Promise((resolve) => socket.once("open", resolve));
  const { promise, resolve } = Promise.withResolvers<void>();
  let [sent, back] = [0, 0];
  const send = (socket: WebSocket) => {
    if (sent >= shape.frames) return;
    sent += 1;
    socket.send(frame, (error) => assert(!error, "the echo takes every frame"));
  };
  for (const socket of sockets) {
    socket.on("message", () => {
      back += 1;
      if (back >= shape.frames) resolve();
      else send(socket);
    });
  }
  const startMs = performance.now();
  for (let i = 0; i < IN_FLIGHT; i += 1) for (const socket of sockets) send(socket);
  await promise;
  const seconds = (performance.now() - startMs) / 1000;
  for (const socket of sockets) socket.terminate();
  return seconds;
}

async function spawnServer(role: "service" | "echo"): Promise<Served> {
  const listening = Promise.withResolvers<string>();
  let reported = Promise.withResolvers<ServerReport>();
  const child = Bun.spawn([process.execPath, import.meta.path, "--role", role], {
    stdio: ["ignore", "inherit", "inherit"],
    serialization: "json",
    ipc(message: FromServer) {
      if (message.kind === "listening") listening.resolve(message.url);
      else reported.resolve(message.report);
    },
  });
  return {
    url: await listening.promise,
    report: () => {
      reported = Promise.withResolvers();
      child.send("report");
      return reported.promise;
    },
    stop: async () => {
      child.kill();
      await child.exited;
    },
  };
}

async function runService(): Promise<void> {
  const clock = { nowMs: () => performance.now() };
  const server = new DraftServer({ clock, instanceId: 1 });
  const service = await DraftService.listen({ server, host: "127.0.0.1", port: 0 });
  process.on("message", () => {
    const { user, system } = process.cpuUsage();
    const report = { cpuUs: user + system, server: server.stats(), service: service.stats() };
    process.send?.({ kind: "report", report } satisfies FromServer);
  });
  process.send?.({ kind: "listening", url: service.url } satisfies FromServer);
}

async function runEcho(): Promise<void> {
  const sockets = new WebSocketServer({ host: "127.0.0.1", port: 0, perMessageDeflate: false });
  sockets.on("connection", (socket) => {
    socket.on("message", (data: Buffer) => {
      socket.send(data, (error) => error && socket.terminate());
    });
    socket.on("error", () => socket.terminate());
  });
  await new Promise((resolve) => sockets.once("listening", resolve));
  const address = sockets.address();
  const port = typeof address === "object" ? address?.port : null;
  process.send?.({ kind: "listening", url: `ws://127.0.0.1:${port}` } satisfies FromServer);
}

async function main(): Promise<void> {
  const { values } = parseArgs({
    options: {
      clients: { type: "string", default: "1,4,16" },
      groups: { type: "string", default: "16" },
      tokens: { type: "string", default: "8192" },
      json: { type: "string" },
      role: { type: "string" },
    },
  });
  if (values.role === "service") return runService();
  if (values.role === "echo") return runEcho();
  const rows: DraftServiceRow[] = [];
  for (const clients of values.clients.split(",").map(Number)) {
    const shape = { clients, groups: Number(values.groups), tokens: Number(values.tokens) };
    rows.push(await measure(shape));
  }
  console.log(tableOf(rows));
  if (values.json !== undefined) {
    const host = { cpu: cpus()[0]?.model ?? "unknown", cores: cpus().length, bun: Bun.version };
    const command = `bun bench/macro/draft-service.ts ${process.argv.slice(2).join(" ")}`;
    writeFileSync(values.json, `${JSON.stringify({ command, host, results: rows }, null, 2)}\n`);
  }
}

function tableOf(rows: readonly DraftServiceRow[]): string {
  const head = ["clients", "deltas/s in", "out", "tokens/s in", "out", "frames/s", "echo", "ratio"];
  const table = new Table({
    head: [...head, "server us/delta", "server CPU"],
    style: { head: [], border: [] },
  });
  const whole = (value: number) => Math.round(value).toLocaleString("en");
  for (const row of rows) {
    table.push([
      String(row.clients),
      whole(row.deltas_in_per_s),
      whole(row.deltas_out_per_s),
      whole(row.tokens_in_per_s),
      whole(row.tokens_out_per_s),
      whole(row.frames_per_s),
      whole(row.echo_frames_per_s),
      row.ratio.toFixed(2),
      row.server_us_per_delta.toFixed(2),
      `${Math.round(100 * row.server_cpu_share)} %`,
    ]);
  }
  return table.toString();
}

if (import.meta.main) await main();
