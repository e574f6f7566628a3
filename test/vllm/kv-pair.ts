// Two real vLLM servers with ExampleConnector, and workers on them without a rollout between: what moves where is up to
// the caller. For the test and the bench of moves by KV.

import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { groupId, requestId, type WeightEpoch, workerId } from "../../src/base/ids.ts";
import { drawKey, SAMPLING_DEFAULTS } from "../../src/request/request.ts";
import type { KvMoveStats, WorkerEvent } from "../../src/rollout/worker.ts";
import { findVllm } from "../../src/supervise/find-vllm.ts";
import { launchOf } from "../../src/supervise/launch.ts";
import { ManagedServer } from "../../src/supervise/managed-server.ts";
import { freePorts } from "../../src/supervise/ports.ts";
import { wallTimers } from "../../src/worker/vllm/clock.ts";
import { KvShare, type MoveRule } from "../../src/worker/vllm/kv-share.ts";
import { openVllmWorker } from "../../src/worker/vllm/open.ts";
import type { VllmWorker } from "../../src/worker/vllm/worker.ts";
import { MODEL, ROOT } from "./fleet.ts";

const HOST = "127.0.0.1";
export const CONTEXT_TOKENS = 2100;
/** As src/supervise/launch.ts has it on CPU. */
export const BLOCK_TOKENS = 32;

export interface Piece {
  readonly id: number;
  readonly prompt: readonly number[];
  readonly output: readonly number[];
  readonly tokens: number;
  readonly temperature: number;
}

export interface Made {
  readonly tokens: number[];
  /** From handing the chunk to the worker to its first token. */
  readonly firstMs: number;
}

/** Servers that run; with `connector`, each with a folder of its own. */
export class KvServers {
  readonly servers: readonly ManagedServer[];
  readonly folders: readonly string[];
  readonly #root: string;

  private constructor(servers: readonly ManagedServer[], folders: readonly string[], root: string) {
    this.servers = servers;
    this.folders = folders;
    this.#root = root;
  }

  static async start(options: { connector: boolean; startMsMax: number }): Promise<KvServers> {
    const found = findVllm(process.env.FORETOKEN_VLLM ?? null, ROOT);
    const root = mkdtempSync(join(tmpdir(), "foretoken-kv-pair-"));
    const folders = [0, 1].map((index) => join(root, `vllm-${index}`));
    const servers = freePorts(2, HOST).map((port, index) => {
      const launch = launchOf({
        ...found,
        model: MODEL,
        host: HOST,
        port,
        gpus: found.build.isCpu ? null : String(index),
        contextTokens: CONTEXT_TOKENS,
        servedName: null,
        apiKey: null,
        plugin: null,
        kvConnector: options.connector ? { name: "example", folder: folders[index] ?? "" } : null,
        extraArgs: [],
      });
      return new ManagedServer(
        {
          name: `kv-${index}`,
          url: `http://${HOST}:${port}`,
          command: launch.command,
          env: { ...launch.envDefaults, ...process.env, ...launch.env },
          logPath: join(ROOT, "out", "test-vllm", `kv-${index}.log`),
          startMsMax: options.startMsMax,
          graceMs: 5_000,
        },
        () => {},
      );
    });
    await Promise.all(servers.map((server) => server.start()));
    return new KvServers(servers, folders, root);
  }

  async stop(): Promise<void> {
    await Promise.all(this.servers.map((server) => server.stop()));
    rmSync(this.#root, { recursive: true, force: true });
  }
}

export class KvPair {
  readonly workers: readonly VllmWorker[];
  readonly #events: WorkerEvent[] = [];
  readonly #waiting: (() => void)[] = [];

  private constructor(workers: readonly VllmWorker[]) {
    this.workers = workers;
    for (const worker of workers) {
      worker.listen((_, events) => {
        this.#events.push(...events);
        for (const wake of this.#waiting.splice(0)) wake();
      });
    }
  }

  static async open(
    { servers }: KvServers,
    options: { rule: MoveRule; epoch: WeightEpoch; salt: string },
  ): Promise<KvPair> {
    const share = new KvShare({ clock: wallTimers, bytesMax: 2 ** 30, rule: options.rule });
    const workers = servers.map(({ spec }, index) =>
      openVllmWorker({
        workerId: workerId(index),
        url: spec.url,
        epoch: options.epoch,
        kvShare: share,
        cacheSalt: options.salt,
        limits: { pollMs: 100 },
      }),
    );
    return new KvPair(await Promise.all(workers));
  }

  async chunk(at: number, piece: Piece): Promise<Made> {
    const { id, prompt, output, tokens, temperature } = piece;
    const from = this.#events.length;
    const startMs = performance.now();
    let firstMs = Number.NaN;
    this.workers[at]?.send([
      {
        kind: "run",
        request: {
          requestId: requestId(id),
          groupId: groupId(`g${id}`),
          sampleIndex: 0,
          prompt: Int32Array.from(prompt),
          sampling: {
            ...SAMPLING_DEFAULTS,
            temperature,
            seed: 5,
            tokensMax: CONTEXT_TOKENS,
            stopTokenIds: [],
          },
          draw: drawKey(5, "g", 0),
          divisible: true,
        },
        output: Int32Array.from(output),
        chunkTokens: tokens,
        priority: "low",
        kv: null,
        draft: null,
      },
    ]);
    for (;;) {
      const ours: number[] = [];
      for (const event of this.#events.slice(from)) {
        if (event.kind === "failed") throw new Error(event.message);
        if (event.kind === "tokens" && event.requestId === id) ours.push(...event.tokens);
        if (event.kind === "chunk_done" && event.requestId === id) return { tokens: ours, firstMs };
      }
      if (ours.length > 0 && Number.isNaN(firstMs)) firstMs = performance.now() - startMs;
      await this.heard();
    }
  }

  /** Something was said by a worker; what it has counted may have changed. */
  heard(): Promise<void> {
    return new Promise((resolve) => this.#waiting.push(resolve));
  }

  /** The request is done with. */
  release(id: number): void {
    for (const worker of this.workers) {
      worker.send([{ kind: "release", requestId: requestId(id) }]);
    }
  }

  moves(at: number): KvMoveStats {
    const moves = this.workers[at]?.stats().kvMoves;
    if (moves === undefined) throw new Error("the server has no connector");
    return moves;
  }

  async close(): Promise<void> {
    await Promise.all(this.workers.map((worker) => worker.close()));
  }
}

/** `count` tokens that belong to `seed`: KV of a text does not care what it says. */
export function someText(seed: number, count: number): number[] {
  let state = (seed * 2_654_435_761) >>> 0;
  return Array.from({ length: count }, () => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    return 5 + ((state >>> 8) % 400);
  });
}
