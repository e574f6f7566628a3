// The processes of the serve bench: the sidecar over workers that emit batches as the link does, a plain
// reverse proxy, and what stands behind that. Each counts its own CPU.

import { parseArgs } from "node:util";
import { assert } from "../../src/core/base/assert.ts";
import type { Clock } from "../../src/core/base/clock.ts";
import { type RequestId, type WorkerId, weightEpoch, workerId } from "../../src/core/base/ids.ts";
import { DRAFT_MODES, type DraftMode } from "../../src/core/draft/registry.ts";
import type { RequestSpec } from "../../src/core/request/request.ts";
import type { WorkerCapacity, WorkerCommand, WorkerEvent } from "../../src/core/rollout/worker.ts";
import { loadCore } from "../../src/core/wasm/load.ts";
import { EmbeddedKvPool } from "../../src/host/embedded-pool.ts";
import { serveHttp } from "../../src/server/http.ts";
import { DataPlane, dataRoutes } from "../../src/server/openai/data-plane.ts";
import { Sidecar } from "../../src/server/sidecar.ts";
import { inlineEncoder } from "../../src/text/encoder.ts";
import type { Text } from "../../src/text/text.ts";
import { StubWorker } from "../../test/suite/stub-worker.ts";
import {
  type Load,
  type Mode,
  type Order,
  type Ran,
  run,
  stamp,
  turn,
  WORKERS,
} from "./serve-load.ts";
import { startProxy, startUpstream } from "./serve-proxy.ts";

export interface Served {
  readonly url: string;
  /** Waits until this number of requests, or connections, is open. */
  ready(count: number): Promise<void>;
  run(load: Load): Promise<Ran>;
  stop(): Promise<void>;
}

type Answer = { kind: "listening"; url: string } | { kind: "done"; ran: Ran | null };

const EPOCH = weightEpoch(0);

const clock: Clock = { nowMs: () => performance.now() };

interface Running {
  readonly spec: RequestSpec;
  position: number;
  chunkLeft: number;
}

/** Makes tokens that say when they were made. */
class StampingWorker extends StubWorker {
  readonly workerId: WorkerId;
  readonly name: string;
  readonly capacity: WorkerCapacity = {
    slots: 4_096,
    kvTokens: 1 << 26,
    contextTokens: 1 << 21,
    kvBytesPerToken: 1,
  };
  readonly #running = new Map<RequestId, Running>();

  constructor(id: WorkerId) {
    super();
    this.workerId = id;
    this.name = `stamping worker ${id}`;
  }

  send(commands: readonly WorkerCommand[]): void {
    for (const command of commands) {
      if (command.kind === "run") {
        const { request, output, chunkTokens } = command;
        const running = { spec: request, position: output.length, chunkLeft: chunkTokens };
        this.#running.set(request.requestId, running);
      } else if (command.kind === "release") {
        this.#running.delete(command.requestId);
      } else if (command.kind === "export") {
        const { requestId } = command;
        queueMicrotask(() => this.tell(EPOCH, [{ kind: "exported", requestId, kv: null }]));
      }
    }
  }

  /** Tokens made. */
  step(stepTokens: number): number {
    const now = stamp();
    const events: WorkerEvent[] = [];
    let made = 0;
    for (const [requestId, running] of this.#running) {
      const { tokensMax } = running.spec.sampling;
      const count = Math.min(stepTokens, running.chunkLeft, tokensMax - running.position);
      events.push({
        kind: "tokens",
        requestId,
        offset: running.position,
        tokens: new Int32Array(count).fill(now),
        logprobs: new Float32Array(count).fill(-1),
        top: null,
      });
      running.position += count;
      running.chunkLeft -= count;
      made += count;
      const isOver = running.position >= tokensMax;
      if (!isOver && running.chunkLeft > 0) continue;
      this.#running.delete(requestId);
      events.push({ kind: "chunk_done", requestId, finish: isOver ? "length" : null });
    }
    this.tell(EPOCH, events);
    return made;
  }
}

const text: Text = {
  vocabularySize: 2 ** 30,
  encode: (input) => Int32Array.from(input, (char) => char.charCodeAt(0)),
  decode: (tokens) => " word".repeat(tokens.length),
  detokenizer: () => ({ push: (tokens) => " word".repeat(tokens.length), flush: () => "" }),
  bytes: () => new TextEncoder().encode(" word"),
  renderChat: () => "",
};

function newSidecar(draft: DraftMode): Sidecar {
  return new Sidecar({
    rollout: {
      policy: "seer",
      draft,
      chunkTokens: 256,
      epoch: EPOCH,
      pool: new EmbeddedKvPool({ memoryBytesMax: 1 << 20, disk: null }),
      clock,
      core: loadCore(),
    },
    vocabularySize: text.vocabularySize,
    limits: {
      requestsMax: 65_536,
      groupsMax: 4_096,
      keptBytesMax: 2 ** 25,
    },
    random: () => Math.floor(Math.random() * 2 ** 32),
  });
}

function startSidecar(draft: DraftMode): {
  url: string;
  obey: (order: Order) => Promise<Ran | null>;
} {
  const sidecar = newSidecar(draft);
  const workers = Array.from({ length: WORKERS }, (_, i) => new StampingWorker(workerId(i)));
  for (const worker of workers) sidecar.rollout.addWorker(worker);
  const plane = new DataPlane({
    sidecar,
    text,
    encoder: inlineEncoder(text),
    modelNames: ["model"],
    eosTokenIds: [0],
    version: () => "0",
  });
  const server = serveHttp({
    host: "127.0.0.1",
    port: 0,
    routes: dataRoutes(plane, []),
    sockets: {},
    apiToken: null,
    bodyBytesMax: 1 << 20,
    frameBytesMax: 1 << 20,
    answered: () => {},
    failed: (error) => console.error(error),
  });
  const obey = async (order: Order): Promise<Ran | null> => {
    if (order.kind === "ready") {
      while (sidecar.rollout.unfinished < order.count) await turn();
      return null;
    }
    return await run(order.load, async (step, tokens) => {
      const made = workers[step % WORKERS]?.step(tokens) ?? 0;
      await turn();
      return made;
    });
  };
  return { url: String(server.url), obey };
}

interface Child {
  readonly url: string;
  order(order: Order): Promise<Ran | null>;
  stop(): Promise<void>;
}

async function spawnChild(...args: string[]): Promise<Child> {
  const listening = Promise.withResolvers<string>();
  let done = Promise.withResolvers<Ran | null>();
  const child = Bun.spawn([process.execPath, import.meta.path, ...args], {
    stdio: ["ignore", "inherit", "inherit"],
    serialization: "json",
    ipc(answer: Answer) {
      if (answer.kind === "listening") listening.resolve(answer.url);
      else done.resolve(answer.ran);
    },
    onExit: (_child, code) => {
      const error = new Error(`a process of the bench ended with ${code}`);
      listening.reject(error);
      done.reject(error);
    },
  });
  // A process that is stopped at the end has nothing to answer.
  done.promise.catch(() => {});
  return {
    url: await listening.promise,
    order: (order) => {
      done = Promise.withResolvers();
      child.send(order);
      return done.promise;
    },
    stop: async () => {
      done.promise.catch(() => {});
      child.kill();
      await child.exited;
    },
  };
}

export async function spawnServed(mode: Mode, draft: DraftMode): Promise<Served> {
  if (mode === "proxy") return await spawnProxied();
  const child = await spawnChild("--role", "sidecar", "--draft", draft);
  return {
    url: child.url,
    ready: async (count) => void (await child.order({ kind: "ready", count })),
    run: async (load) => ranOf(await child.order({ kind: "run", load })),
    stop: () => child.stop(),
  };
}

async function spawnProxied(): Promise<Served> {
  const upstream = await spawnChild("--role", "upstream");
  const proxy = await spawnChild("--role", "proxy", "--upstream", upstream.url);
  return {
    url: proxy.url,
    ready: async (count) => void (await upstream.order({ kind: "ready", count })),
    run: async (load) => {
      const order: Order = { kind: "run", load };
      const [behind, proxied] = await Promise.all([upstream.order(order), proxy.order(order)]);
      return { ...ranOf(behind), cpuUs: ranOf(proxied).cpuUs };
    },
    stop: async () => {
      await proxy.stop();
      await upstream.stop();
    },
  };
}

function ranOf(ran: Ran | null): Ran {
  assert(ran !== null, "a run is answered with what it took");
  return ran;
}

function main(): void {
  const { values } = parseArgs({
    options: {
      role: { type: "string" },
      draft: { type: "string" },
      upstream: { type: "string" },
    },
  });
  const draft = DRAFT_MODES.find((known) => known === values.draft) ?? "grouped";
  const start = {
    sidecar: () => startSidecar(draft),
    upstream: startUpstream,
    proxy: () => startProxy(values.upstream ?? ""),
  }[values.role ?? ""];
  assert(start !== undefined, "a process of the bench has a role");
  const { url, obey } = start();
  const answer = (message: Answer) => process.send?.(message);
  process.on("message", (order: Order) => {
    void obey(order).then((ran) => answer({ kind: "done", ran }));
  });
  answer({ kind: "listening", url });
}

if (import.meta.main) main();
