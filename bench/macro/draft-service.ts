import { parseArgs } from "node:util";
import Table from "cli-table3";
import { WebSocket, WebSocketServer } from "ws";
import { assert } from "../../src/core/base/assert.ts";
import { type GroupId, groupId, weightEpoch } from "../../src/core/base/ids.ts";
import { DRAFT_PROTOCOL_VERSION } from "../../src/core/draft/service/limits.ts";
import type { ClientMessage, ServerMessage } from "../../src/core/draft/service/message.ts";
import { DraftServer, type DraftServerStats } from "../../src/core/draft/service/server.ts";
import { decodeServerMessage, encodeClientMessage } from "../../src/proto/draft-codec.ts";
import { DraftSocketService } from "../../src/server/drafts/draft-socket.ts";
import { type SocketService, serveHttp } from "../../src/server/http.ts";
import { writeReport } from "../harness.ts";

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
type ServerReport = {
  cpuUs: number;
  server: DraftServerStats;
  framesReceived: number;
  bytesReceived: number;
  bytesSent: number;
};
type FromServer = { kind: "listening"; url: string } | { kind: "report"; report: ServerReport };

interface Served {
  readonly url: string;
  report(): Promise<ServerReport>;
  stop(): Promise<void>;
}

const ALL_SAMPLES = Array.from({ length: 16 }, (_, i) => i);
/** Tokens that an engine makes of a response between two flushes: some steps, with drafts. */
const STEP_TOKENS = 16;
const EPOCH = weightEpoch(0);
const PROMPT = Int32Array.from({ length: 512 }, (_, i) => i);
/** Frames under way on each connection of the echo. */
const IN_FLIGHT = 32;

/** Runs the shape on a server process of its own, then the echo of its traffic on another. */
export async function measure(shape: DraftServiceShape): Promise<DraftServiceRow> {
  const served = await spawnServer("service");
  const idle = await served.report();
  const seconds = await share(served.url, shape);
  const { cpuUs, server, framesReceived, bytesReceived, bytesSent } = await served.report();
  await served.stop();
  const echo = await spawnServer("echo");
  const frames = framesReceived;
  const bytes = Math.round((bytesReceived + bytesSent) / 2 / frames);
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
  const clients = await Promise.all(
    Array.from({ length: shape.clients }, (_, index) => BenchClient.open(url, index, shape)),
  );
  const startMs = performance.now();
  await Promise.all(clients.map((client) => client.run()));
  const seconds = (performance.now() - startMs) / 1000;
  for (const client of clients) client.close();
  return seconds;
}

/** An engine as the service sees it: in turns, a step's tokens of its responses go up, and what it lacks comes down. */
class BenchClient {
  readonly #socket: WebSocket;
  readonly #ids: readonly GroupId[];
  readonly #tokens: number;
  readonly #samples: ReadonlySet<number>;
  /** By group, then by sample: output tokens that this client has. */
  readonly #have: number[][];
  readonly #log: Int32Array;
  #answered: (message: ServerMessage) => void = () => undefined;

  private constructor(socket: WebSocket, index: number, shape: DraftServiceShape) {
    this.#socket = socket;
    this.#ids = Array.from({ length: shape.groups }, (_, i) => groupId(`prompt-${i}`));
    this.#tokens = shape.tokens;
    this.#samples = new Set(ALL_SAMPLES.filter((i) => i % shape.clients === index));
    this.#have = this.#ids.map(() => ALL_SAMPLES.map(() => 0));
    this.#log = Int32Array.from({ length: shape.tokens }, (_, i) => (i * 7919) % 150_000);
    socket.on("message", (data: Buffer) => {
      const decoded = decodeServerMessage(data);
      assert(decoded.kind === "ok", "the server's frames are valid");
      this.#answered(decoded.message);
    });
  }

  static async open(url: string, index: number, shape: DraftServiceShape): Promise<BenchClient> {
    const socket = new WebSocket(url, { perMessageDeflate: false });
    await new Promise((resolve) => socket.once("open", resolve));
    const client = new BenchClient(socket, index, shape);
    await client.#ask({ kind: "hello", protocolVersion: DRAFT_PROTOCOL_VERSION });
    for (const id of client.#ids) {
      const group = { epoch: EPOCH, groupId: id, ttlMs: 3_600_000, prompt: PROMPT };
      await client.#ask({ kind: "register_group", ...group });
    }
    return client;
  }

  async run(): Promise<void> {
    for (let offset = 0; offset < this.#tokens; offset += STEP_TOKENS) {
      await this.#write(offset);
      await this.#fetch();
    }
    while (this.#have.some((counts) => counts.some((count) => count < this.#tokens))) {
      await this.#fetch();
    }
  }

  close(): void {
    this.#socket.terminate();
  }

  async #write(offset: number): Promise<void> {
    const tokens = this.#log.subarray(offset, offset + STEP_TOKENS);
    const deltas = [...this.#samples].map((sampleIndex) => ({ sampleIndex, offset, tokens }));
    const groups = this.#ids.map((id) => ({ groupId: id, deltas }));
    await this.#ask({ kind: "update", epoch: EPOCH, groups });
    for (const counts of this.#have) {
      for (const sample of this.#samples) counts[sample] = offset + tokens.length;
    }
  }

  async #fetch(): Promise<void> {
    const states = this.#ids.map((id, i) => ({ groupId: id, have: this.#have[i] ?? [] }));
    const answer = await this.#ask({ kind: "fetch", epoch: EPOCH, states });
    assert(answer.kind === "fetched", "a fetch is answered with what was fetched");
    for (const { groupId: id, deltas } of answer.groups) {
      const counts = this.#have[this.#ids.indexOf(id)];
      for (const { sampleIndex, offset, tokens } of deltas) {
        if (counts !== undefined) counts[sampleIndex] = offset + tokens.length;
      }
    }
  }

  #ask(message: ClientMessage): Promise<ServerMessage> {
    return new Promise((resolve) => {
      this.#answered = resolve;
      this.#socket.send(encodeClientMessage(message));
    });
  }
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

function runService(): void {
  const clock = { nowMs: () => performance.now() };
  const server = new DraftServer({ clock, instanceId: 1 });
  const service = new DraftSocketService({ server, reports: null, later: () => () => {} });
  let [framesReceived, bytesReceived, bytesSent] = [0, 0, 0];
  const counted: SocketService = {
    open: (socket) => {
      const { send } = socket;
      socket.send = (data) => {
        bytesSent += data.length;
        return send(data);
      };
      service.open(socket);
    },
    message: (socket, data) => {
      framesReceived += 1;
      bytesReceived += data.length;
      service.message(socket, data);
    },
    close: (socket) => service.close(socket),
    drain: () => service.drain(),
  };
  const http = serveHttp({
    host: "127.0.0.1",
    port: 0,
    routes: [],
    sockets: { "/v1/draft": counted },
    apiToken: null,
    bodyBytesMax: 0,
    frameBytesMax: server.limits.frameBytesMax,
    answered: () => {},
    failed: (error) => console.error(error),
  });
  process.on("message", () => {
    const { user, system } = process.cpuUsage();
    const traffic = { framesReceived, bytesReceived, bytesSent };
    const report = { cpuUs: user + system, server: server.stats(), ...traffic };
    process.send?.({ kind: "report", report } satisfies FromServer);
  });
  const url = `ws://${http.url.host}/v1/draft`;
  process.send?.({ kind: "listening", url } satisfies FromServer);
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
  writeReport(values.json, { results: rows });
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
