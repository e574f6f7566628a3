// The processes of the serve bench: the sidecar over workers that emit batches as engines do, a plain reverse proxy, and
// what stands behind that, which writes what the sidecar's streams carry. Each counts its own CPU.

import { parseArgs } from "node:util";
import { assert } from "../../src/core/base/assert.ts";
import { type RequestId, type WorkerId, weightEpoch, workerId } from "../../src/core/base/ids.ts";
import { DRAFT_MODES, type DraftMode } from "../../src/core/draft/registry.ts";
import type { WorkerCapacity, WorkerCommand, WorkerEvent } from "../../src/core/rollout/worker.ts";
import { serveHttp } from "../../src/server/http.ts";
import { DataPlane, dataRoutes } from "../../src/server/openai/data-plane.ts";
import { inlineEncoder } from "../../src/text/encoder.ts";
import type { Text } from "../../src/text/text.ts";
import { newSidecar } from "../../test/suite/sidecar-bed.ts";
import { StubWorker } from "../../test/suite/stub-worker.ts";

export interface Load {
  readonly seconds: number;
  /** Tokens of a request in a step. */
  readonly stepTokens: number;
  /** Rate over all workers, whose steps are spread evenly; null: unlimited. */
  readonly tokensPerS: number | null;
}

export interface Ran {
  readonly tokensOut: number;
  readonly cpuUs: number;
  readonly seconds: number;
}

/** A number: resolves when so many requests, or connections, are open. */
type Order = number | Load;

/** What a process does: `open` counts requests, or connections; `step` makes step number `step`, and returns its tokens. */
interface Role {
  readonly url: URL;
  readonly open: () => number;
  readonly step: (step: number, stepTokens: number) => Promise<number>;
}

const WORKERS = 8;
export const GROUP_SIZE = 16;
export const STAMP_MASK = 0x3fffffff;

/** Now in units of 10 microseconds, 30 bits of it. */
export const stamp = () =>
  Math.floor((performance.timeOrigin + performance.now()) * 100) % (STAMP_MASK + 1);
const turn = () => new Promise<void>((resolve) => setImmediate(resolve));

function cpuUs(): number {
  const { user, system } = process.cpuUsage();
  return user + system;
}

async function run({ seconds, stepTokens, tokensPerS }: Load, { step }: Role): Promise<Ran> {
  const startMs = performance.now();
  const startUs = cpuUs();
  let tokensOut = 0;
  for (let steps = 0; ; steps += 1) {
    const elapsedMs = performance.now() - startMs;
    if (elapsedMs >= seconds * 1000) break;
    // The generated tokens show how far it is ahead.
    const dueMs = tokensPerS === null ? 0 : (tokensOut * 1000) / tokensPerS;
    if (dueMs > elapsedMs) await Bun.sleep(dueMs - elapsedMs);
    tokensOut += await step(steps, stepTokens);
  }
  return { tokensOut, cpuUs: cpuUs() - startUs, seconds: (performance.now() - startMs) / 1000 };
}

interface Running {
  readonly tokensMax: number;
  position: number;
  chunkLeft: number;
}

/** Makes tokens that say when they were made. */
class StampingWorker extends StubWorker {
  readonly workerId: WorkerId;
  readonly name = "stamping worker";
  readonly capacity: WorkerCapacity = {
    slots: 4_096,
    kvTokens: 1 << 26,
    contextTokens: 1 << 21,
    kvBytesPerToken: 1,
  };
  readonly #running = new Map<RequestId, Running>();

  constructor(index: number) {
    super();
    this.workerId = workerId(index);
  }

  send(commands: readonly WorkerCommand[]): void {
    for (const command of commands) {
      if (command.kind === "run") {
        const { request, output, chunkTokens: chunkLeft } = command;
        const { tokensMax } = request.sampling;
        this.#running.set(request.requestId, { tokensMax, position: output.length, chunkLeft });
      } else if (command.kind === "release") {
        this.#running.delete(command.requestId);
      } else if (command.kind === "export") {
        const { requestId } = command;
        queueMicrotask(() =>
          this.tell(weightEpoch(0), [{ kind: "exported", requestId, kv: null }]),
        );
      }
    }
  }

  /** Tokens made. */
  step(stepTokens: number): number {
    const now = stamp();
    const events: WorkerEvent[] = [];
    let made = 0;
    for (const [requestId, running] of this.#running) {
      const { position: offset, chunkLeft, tokensMax } = running;
      const count = Math.min(stepTokens, chunkLeft, tokensMax - offset);
      const tokens = new Int32Array(count).fill(now);
      const logprobs = new Float32Array(count).fill(-1);
      events.push({ kind: "tokens", requestId, offset, tokens, logprobs, top: null });
      running.position += count;
      running.chunkLeft -= count;
      made += count;
      const isOver = running.position >= tokensMax;
      if (!isOver && running.chunkLeft > 0) continue;
      this.#running.delete(requestId);
      events.push({ kind: "chunk_done", requestId, finish: isOver ? "length" : null });
    }
    this.tell(weightEpoch(0), events);
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

function startSidecar(draft: DraftMode): Role {
  const { vocabularySize } = text;
  const sidecar = newSidecar(
    { nowMs: () => performance.now() },
    {
      chunkTokens: 256,
      draft,
      vocabularySize,
      limits: {
        requestsMax: 65_536,
        groupsMax: 4_096,
        keptBytesMax: 2 ** 25,
      },
    },
  );
  const workers = Array.from({ length: WORKERS }, (_, i) => new StampingWorker(i));
  for (const worker of workers) sidecar.rollout.addWorker(worker);
  const plane = new DataPlane({
    sidecar,
    text,
    encoder: inlineEncoder(text),
    modelNames: ["model"],
    eosTokenIds: [0],
    version: () => "0",
  });
  const { url } = serveHttp({
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
  return {
    url,
    open: () => sidecar.rollout.unfinished,
    step: async (step, tokens) => {
      const made = workers[step % WORKERS]?.step(tokens) ?? 0;
      await turn();
      return made;
    },
  };
}

const plainServer = (fetch: (request: Request) => Response | Promise<Response>): URL =>
  Bun.serve({ hostname: "127.0.0.1", port: 0, idleTimeout: 0, fetch }).url;

/** Server-sent events as the sidecar writes them, from a process behind the proxy. */
function startUpstream(): Role {
  const clients = new Set<ReadableStreamDefaultController<Uint8Array>>();
  const encoder = new TextEncoder();
  const url = plainServer(() => {
    const stream = new ReadableStream<Uint8Array>({ start: (client) => void clients.add(client) });
    return new Response(stream, { headers: { "content-type": "text/event-stream" } });
  });
  const step: Role["step"] = async (step, tokens) => {
    // As many events at a time as a step of one of the sidecar's workers brings.
    const share = [...clients].filter((_, i) => i % WORKERS === step % WORKERS);
    for (const client of share) {
      for (let index = 0; index < GROUP_SIZE; index += 1) {
        client.enqueue(encoder.encode(eventOf(index, tokens)));
      }
    }
    await turn();
    while (share.some((client) => (client.desiredSize ?? 0) < -GROUP_SIZE * 4)) await turn();
    return share.length * GROUP_SIZE * tokens;
  };
  return { url, open: () => clients.size, step };
}

function eventOf(index: number, tokens: number): string {
  const ids = new Array<number>(tokens).fill(stamp());
  const choice = { index, text: " word".repeat(tokens), logprobs: null, finish_reason: null };
  const chunk = { id: "cmpl-0123456789abcdef", object: "text_completion", created: 1_750_000_000 };
  const choices = [{ ...choice, stop_reason: null, token_ids: ids }];
  return `data: ${JSON.stringify({ ...chunk, model: "model", choices })}\n\n`;
}

function startProxy(upstream: string): Role {
  const url = plainServer(async (request) => {
    const { method, headers } = request;
    const answer = await fetch(upstream, { method, headers, body: await request.bytes() });
    return new Response(answer.body, { headers: answer.headers });
  });
  // What it carries is counted behind it.
  const step = async () => {
    await Bun.sleep(20);
    return 0;
  };
  return { url, open: () => 0, step };
}

type Answer = { readonly url: string } | { readonly ran: Ran | null };

/** A process of the bench. */
export class Child {
  readonly #process: Bun.Subprocess;
  readonly #listening = Promise.withResolvers<string>();
  #done = Promise.withResolvers<Ran | null>();

  constructor(...args: string[]) {
    this.#process = Bun.spawn([process.execPath, import.meta.path, ...args], {
      stdio: ["ignore", "inherit", "inherit"],
      serialization: "json",
      ipc: (answer: Answer) => {
        if ("url" in answer) this.#listening.resolve(answer.url);
        else this.#done.resolve(answer.ran);
      },
      onExit: (_, code) => {
        const error = new Error(`a process of the bench ended with ${code}`);
        this.#listening.reject(error);
        // A process that is stopped at the end has nothing to answer.
        this.#done.promise.catch(() => {});
        this.#done.reject(error);
      },
    });
  }

  get url(): Promise<string> {
    return this.#listening.promise;
  }

  /** Resolves when so many requests, or connections, are open. */
  async ready(count: number): Promise<void> {
    await this.#order(count);
  }

  async run(load: Load): Promise<Ran> {
    const ran = await this.#order(load);
    assert(ran !== null, "a run is answered with what it took");
    return ran;
  }

  async stop(): Promise<void> {
    this.#process.kill();
    await this.#process.exited;
  }

  #order(order: Order): Promise<Ran | null> {
    this.#done = Promise.withResolvers();
    this.#process.send(order);
    return this.#done.promise;
  }
}

function main(): void {
  const type = "string";
  const options = { role: { type }, draft: { type }, upstream: { type } } as const;
  const { values } = parseArgs({ options });
  const draft = DRAFT_MODES.find((known) => known === values.draft) ?? "grouped";
  const start = {
    sidecar: () => startSidecar(draft),
    upstream: startUpstream,
    proxy: () => startProxy(values.upstream ?? ""),
  }[values.role ?? ""];
  assert(start !== undefined, "a process of the bench has a role");
  const role = start();
  const obey = async (order: Order): Promise<Ran | null> => {
    if (typeof order !== "number") return await run(order, role);
    while (role.open() < order) await turn();
    return null;
  };
  const answer = (message: Answer) => process.send?.(message);
  process.on("message", (order: Order) => void obey(order).then((ran) => answer({ ran })));
  answer({ url: String(role.url) });
}

if (import.meta.main) main();
