// What one link carries: tokens a second from a host's frames to `Worker` events in the sidecar, on one
// connection, beside JSON text frames of the same events in the same run. The host is a process of its
// own, with a worker that computes nothing; the sidecar's share of a core is measured as well, for the
// two processes share the machine.
//
//   bun bench/macro/link.ts [--tokens 20000000] [--requests 256] [--per-step 1,4] [--json FILE]

import { parseArgs } from "node:util";
import Table from "cli-table3";
import { WebSocket, WebSocketServer } from "ws";
import { assert } from "../../src/core/base/assert.ts";
import {
  groupId,
  type RequestId,
  requestId,
  weightEpoch,
  workerId,
} from "../../src/core/base/ids.ts";
import { drawKey } from "../../src/core/request/request.ts";
import type {
  ControlAnswer,
  SamplingSupport,
  Worker,
  WorkerCommand,
  WorkerEvent,
  WorkerListener,
} from "../../src/core/rollout/worker.ts";
import { LinkHost } from "../../src/engines/remote/host.ts";
import { openLinkWorker } from "../../src/engines/remote/worker.ts";
import { samplingOf } from "../../test/suite/request-spec.ts";
import { writeReport } from "../harness.ts";

export interface LinkShape {
  /** In all; each response has RESPONSE_TOKENS. */
  readonly tokens: number;
  /** That run at the same time. */
  readonly requests: number;
  /** Tokens of one request in one engine step: more than one with drafts. */
  readonly perStep: number;
}

export interface LinkRow {
  readonly requests: number;
  readonly tokens_per_step: number;
  readonly tokens_per_s: number;
  /** CPU of the sidecar's process for each token. */
  readonly ns_per_token: number;
  readonly bytes_per_token: number;
}

export interface LinkResult {
  readonly link: LinkRow;
  readonly json: LinkRow;
}

type Role = "link" | "json";

const EPOCH = weightEpoch(0);
const RESPONSE_TOKENS = 2048;
const VOCABULARY = 151_936;
const PROMPT = Int32Array.from({ length: 64 }, (_, i) => i);
const clock = { nowMs: () => performance.now() };

/** Makes tokens as fast as it is asked to, and nothing else. */
class FloodWorker implements Worker {
  readonly workerId = workerId(0);
  readonly name = "flood";
  readonly capacity = {
    slots: 4096,
    kvTokens: 2 ** 30,
    contextTokens: 2 ** 20,
    kvBytesPerToken: 1,
  };
  readonly #perStep: number;
  readonly #left = new Map<RequestId, number>();
  #listener: WorkerListener = () => {};
  #isStepping = false;

  constructor(perStep: number) {
    this.#perStep = perStep;
  }

  listen(listener: WorkerListener): void {
    this.#listener = listener;
  }

  supports(): SamplingSupport {
    return { kind: "divided" };
  }

  async canary(): Promise<ControlAnswer> {
    return { status: 404, body: null };
  }

  async control(): Promise<ControlAnswer> {
    return { status: 404, body: null };
  }

  async close(): Promise<void> {}

  send(commands: readonly WorkerCommand[]): void {
    for (const command of commands) {
      if (command.kind === "run") this.#left.set(command.request.requestId, command.chunkTokens);
    }
    if (!this.#isStepping) setImmediate(() => this.#step());
    this.#isStepping = true;
  }

  #step(): void {
    const events: WorkerEvent[] = [];
    for (const [id, left] of this.#left) {
      const length = Math.min(this.#perStep, left);
      const offset = RESPONSE_TOKENS - left;
      const tokens = new Int32Array(length);
      for (let i = 0; i < length; i += 1) tokens[i] = (7919 * (offset + i + id)) % VOCABULARY;
      const logprobs = new Float32Array(length).fill(-0.371);
      events.push({ kind: "tokens", requestId: id, offset, tokens, logprobs, top: null });
      this.#left.set(id, left - length);
      if (left > length) continue;
      this.#left.delete(id);
      events.push({ kind: "chunk_done", requestId: id, finish: "length" });
    }
    if (events.length > 0) this.#listener(EPOCH, events);
    this.#isStepping = this.#left.size > 0;
    if (this.#isStepping) setImmediate(() => this.#step());
  }
}

/** What the sidecar counts of either kind of frame. */
interface Stream {
  run(ids: readonly number[]): void;
  receivedBytes(): number;
  close(): Promise<void>;
}

export async function measure(shape: LinkShape): Promise<LinkResult> {
  return { link: await measureOne("link", shape), json: await measureOne("json", shape) };
}

async function measureOne(role: Role, shape: LinkShape): Promise<LinkRow> {
  const { requests, perStep } = shape;
  const host = await spawnHost(role, perStep);
  const total = Math.max(requests, Math.round(shape.tokens / RESPONSE_TOKENS));
  const done = Promise.withResolvers<void>();
  let [begun, ended, tokens, checksum] = [0, 0, 0, 0];
  const hear: WorkerListener = (_, events) => {
    const next: number[] = [];
    for (const event of events) {
      if (event.kind === "tokens") {
        tokens += event.tokens.length;
        checksum += event.tokens[0] ?? 0;
      } else if (event.kind === "chunk_done") {
        ended += 1;
        if (begun < total) next.push(begun++);
      }
    }
    if (next.length > 0) stream.run(next);
    if (ended === total) done.resolve();
  };
  const stream = role === "link" ? await openLink(host.url, hear) : await openJson(host.url, hear);
  const cpu = process.cpuUsage();
  const startMs = performance.now();
  begun = requests;
  stream.run(Array.from({ length: requests }, (_, id) => id));
  await done.promise;
  const seconds = (performance.now() - startMs) / 1000;
  const { user, system } = process.cpuUsage(cpu);
  const bytes = stream.receivedBytes();
  await stream.close();
  await host.stop();
  assert(tokens === total * RESPONSE_TOKENS && checksum > 0, "every token arrives once");
  return {
    requests,
    tokens_per_step: perStep,
    tokens_per_s: tokens / seconds,
    ns_per_token: (1000 * (user + system)) / tokens,
    bytes_per_token: bytes / tokens,
  };
}

async function openLink(url: string, hear: WorkerListener): Promise<Stream> {
  const worker = await openLinkWorker({ workerId: workerId(0), url, clock });
  worker.listen(hear);
  const sampling = samplingOf({ seed: 42, tokensMax: RESPONSE_TOKENS });
  const group = groupId("g");
  return {
    run: (ids) => {
      const commands = ids.map((id): WorkerCommand => {
        const spec = { requestId: requestId(id), groupId: group, sampleIndex: id, prompt: PROMPT };
        const request = { ...spec, sampling, draw: drawKey(42, "g", id), divisible: true };
        const rest = { priority: "low", kv: null, draft: null } as const;
        const output = new Int32Array(0);
        return { kind: "run", request, output, chunkTokens: RESPONSE_TOKENS, ...rest };
      });
      worker.send(commands);
    },
    receivedBytes: () => worker.linkStats().received.bytes,
    close: () => worker.close(),
  };
}

/** Events as JSON names them: what such a link is without a schema. */
interface JsonEvent {
  readonly kind: "tokens" | "chunk_done";
  readonly request_id: number;
  readonly offset: number;
  readonly tokens: readonly number[];
  readonly logprobs: readonly number[];
}

async function openJson(url: string, hear: WorkerListener): Promise<Stream> {
  const socket = new WebSocket(url, { perMessageDeflate: false });
  await new Promise((resolve) => socket.once("open", resolve));
  let bytes = 0;
  socket.on("message", (data: Buffer) => {
    bytes += data.length;
    const events = JSON.parse(data.toString()) as JsonEvent[];
    const heard = events.map((event): WorkerEvent => {
      const id = requestId(event.request_id);
      if (event.kind === "chunk_done") {
        return { kind: "chunk_done", requestId: id, finish: "length" };
      }
      return {
        kind: "tokens",
        requestId: id,
        offset: event.offset,
        tokens: Int32Array.from(event.tokens),
        logprobs: Float32Array.from(event.logprobs),
        top: null,
      };
    });
    hear(EPOCH, heard);
  });
  return {
    run: (ids) => {
      socket.send(JSON.stringify(ids), (error) => assert(!error, "the host takes every frame"));
    },
    receivedBytes: () => bytes,
    close: async () => socket.terminate(),
  };
}

async function spawnHost(role: Role, perStep: number) {
  const listening = Promise.withResolvers<string>();
  const child = Bun.spawn(
    [process.execPath, import.meta.path, "--role", role, "--per-step", String(perStep)],
    {
      stdio: ["ignore", "inherit", "inherit"],
      serialization: "json",
      ipc: (url: string) => listening.resolve(url),
    },
  );
  return {
    url: await listening.promise,
    stop: async () => {
      child.kill();
      await child.exited;
    },
  };
}

async function runLinkHost(perStep: number): Promise<void> {
  const host = await LinkHost.listen({
    worker: new FloodWorker(perStep),
    modelId: "none",
    vocabularySize: VOCABULARY,
    epoch: EPOCH,
    host: "127.0.0.1",
    port: 0,
    token: null,
    clock,
  });
  process.send?.(host.url);
}

async function runJsonHost(perStep: number): Promise<void> {
  const sockets = new WebSocketServer({ host: "127.0.0.1", port: 0, perMessageDeflate: false });
  sockets.on("connection", (socket) => {
    const worker = new FloodWorker(perStep);
    worker.listen((_, events) => {
      const text = JSON.stringify(
        events.map((event) => {
          if (event.kind === "chunk_done") {
            return { kind: event.kind, request_id: event.requestId };
          }
          assert(event.kind === "tokens", "a flood has no other events");
          return {
            kind: event.kind,
            request_id: event.requestId,
            offset: event.offset,
            tokens: [...event.tokens],
            // As many digits as a 32-bit float has, not as many as a 64-bit one.
            logprobs: Array.from(event.logprobs, (value) => Number(value.toPrecision(8))),
          };
        }),
      );
      socket.send(text, (error) => error && socket.terminate());
    });
    socket.on("message", (data: Buffer) => {
      const ids = JSON.parse(data.toString()) as number[];
      const commands = ids.map((id) => ({
        kind: "run",
        request: { requestId: requestId(id) },
        chunkTokens: RESPONSE_TOKENS,
      }));
      worker.send(commands as unknown as WorkerCommand[]);
    });
    socket.on("error", () => socket.terminate());
  });
  await new Promise((resolve) => sockets.once("listening", resolve));
  const address = sockets.address();
  process.send?.(`ws://127.0.0.1:${typeof address === "object" ? address?.port : ""}`);
}

async function main(): Promise<void> {
  const { values } = parseArgs({
    options: {
      tokens: { type: "string", default: "20000000" },
      requests: { type: "string", default: "256" },
      "per-step": { type: "string", default: "1,4" },
      json: { type: "string" },
      role: { type: "string" },
    },
  });
  const perSteps = values["per-step"].split(",").map(Number);
  if (values.role === "link") return runLinkHost(perSteps[0] ?? 1);
  if (values.role === "json") return runJsonHost(perSteps[0] ?? 1);
  const results: LinkResult[] = [];
  for (const perStep of perSteps) {
    const shape = { tokens: Number(values.tokens), requests: Number(values.requests), perStep };
    results.push(await measure(shape));
  }
  console.log(tableOf(results));
  writeReport(values.json, { results });
}

function tableOf(results: readonly LinkResult[]): string {
  const head = ["requests", "tokens a step", "frames", "tokens/s", "ns CPU/token", "bytes/token"];
  const table = new Table({ head, style: { head: [], border: [] } });
  for (const result of results) {
    for (const [name, row] of [["link", result.link] as const, ["JSON", result.json] as const]) {
      table.push([
        String(row.requests),
        String(row.tokens_per_step),
        name,
        Math.round(row.tokens_per_s).toLocaleString("en"),
        row.ns_per_token.toFixed(0),
        row.bytes_per_token.toFixed(1),
      ]);
    }
  }
  return table.toString();
}

if (import.meta.main) await main();
