// KV that moves between two stand-ins with ExampleConnector: what is found, what is computed again, and that nothing
// ends a server or brings KV of other weights.

import { afterEach, expect, test } from "bun:test";
import { existsSync, mkdtempSync, readdirSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import fc from "fast-check";
import { standInResponse } from "../../../test/stand-in/tokens.ts";
import { type StandInOptions, VllmStandIn } from "../../../test/stand-in/vllm-stand-in.ts";
import { groupId, requestId, weightEpoch, workerId } from "../../base/ids.ts";
import { drawKey, SAMPLING_DEFAULTS } from "../../request/request.ts";
import type { KvMoveStats, WorkerEvent } from "../../rollout/worker.ts";
import { wallTimers } from "./clock.ts";
import { KvShare } from "./kv-share.ts";
import type { VllmLimits } from "./limits.ts";
import { openVllmWorker } from "./open.ts";
import type { VllmWorker } from "./worker.ts";

const BLOCK = 16;
const LIMITS: Partial<VllmLimits> = {
  stallMs: 50,
  retryMs: 1,
  retryMsMax: 2,
  pollMs: 5,
  leaveMs: 20,
};

const cleanups: (() => Promise<void> | void)[] = [];
afterEach(async () => {
  for (const cleanup of cleanups.splice(0).toReversed()) await cleanup();
});

interface Side {
  readonly server: VllmStandIn;
  readonly worker: VllmWorker;
  readonly folder: string;
  readonly warnings: string[];
}

class Pair {
  readonly share: KvShare;
  readonly sides: Side[] = [];
  readonly events: WorkerEvent[] = [];
  readonly #waiting: (() => void)[] = [];
  #ids = 0;

  constructor(bytesMax = 1e9) {
    this.share = new KvShare({ clock: wallTimers, bytesMax, rule: "always" });
  }

  /** With a folder of its own, unless `options` have it otherwise. */
  async add(options: Partial<StandInOptions> & { folder?: string } = {}): Promise<Side> {
    const folder = options.folder ?? mkdtempSync(join(tmpdir(), "foretoken-kv-moves-"));
    cleanups.push(() => rmSync(folder, { recursive: true, force: true }));
    const server = await VllmStandIn.start({ kvFolder: folder, ...options });
    cleanups.push(() => server.stop());
    const warnings: string[] = [];
    const worker = await openVllmWorker({
      workerId: workerId(this.sides.length),
      url: server.url,
      kvShare: this.share,
      limits: LIMITS,
      notice: (notice) => notice.kind === "warning" && warnings.push(notice.message),
    });
    cleanups.push(() => worker.close());
    worker.listen((_, events) => {
      this.events.push(...events);
      for (const wake of this.#waiting.splice(0)) wake();
    });
    const side = { server, worker, folder, warnings };
    this.sides.push(side);
    return side;
  }

  newId(): number {
    this.#ids += 1;
    return this.#ids;
  }

  /** Generates a chunk; returns the tokens that it brought. */
  async chunk(
    side: Side,
    text: { id: number; prompt: number[]; output: number[]; tokens: number; isLast?: boolean },
  ): Promise<number[]> {
    const { id, prompt, output, tokens, isLast = false } = text;
    const from = this.events.length;
    side.worker.send([
      {
        kind: "run",
        request: {
          requestId: requestId(id),
          groupId: groupId("g"),
          sampleIndex: id,
          prompt: Int32Array.from(prompt),
          sampling: {
            ...SAMPLING_DEFAULTS,
            temperature: 1,
            seed: 1,
            tokensMax: isLast ? output.length + tokens : 2000,
            stopTokenIds: [],
          },
          draw: drawKey(1, "g", id),
          divisible: true,
        },
        output: Int32Array.from(output),
        chunkTokens: tokens,
        priority: "low",
        kv: null,
        draft: null,
      },
    ]);
    const isDone = (event: WorkerEvent) =>
      (event.kind === "chunk_done" && event.requestId === id) || event.kind === "failed";
    while (!this.events.slice(from).some(isDone)) {
      await new Promise<void>((resolve) => {
        this.#waiting.push(resolve);
      });
    }
    return this.events
      .slice(from)
      .flatMap((event) =>
        event.kind === "tokens" && event.requestId === id ? [...event.tokens] : [],
      );
  }

  /** A text whose first half is made by one side and its second by the other. */
  async moved(from: Side, to: Side, options: { length?: number } = {}): Promise<void> {
    const { length = 40 } = options;
    const id = this.newId();
    const prompt = Array.from({ length }, (_, i) => 20 + ((7 * i + 13 * id) % 200));
    const first = await this.chunk(from, { id, prompt, output: [], tokens: 30 });
    const rest = { id, prompt, output: first, tokens: 30, isLast: true };
    const second = await this.chunk(to, rest);
    expect([...first, ...second]).toEqual(whole(prompt, id, 60));
  }
}

const whole = (prompt: number[], sample: number, tokensMax: number): number[] =>
  standInResponse({ prompt, sample, tokensMin: 0, tokensMax, stopTokenIds: [] });
async function until(isSo: () => boolean): Promise<void> {
  while (!isSo()) await new Promise((resolve) => setImmediate(resolve));
}
const movesOf = ({ worker }: Side): KvMoveStats => {
  const { kvMoves } = worker.stats();
  if (kvMoves === undefined) throw new Error("it has a connector");
  return kvMoves;
};
const own = (folder: string): string[] => {
  const path = join(folder, ".foretoken");
  return existsSync(path) ? readdirSync(path) : [];
};
const names = (folder: string): string[] =>
  readdirSync(folder).filter((name) => name !== ".foretoken");

test("a request that moves finds its KV, generated tokens included", async () => {
  const pair = new Pair();
  const [a, b] = [await pair.add(), await pair.add()];
  await pair.moved(a, b);
  // 40 prompt tokens and 30 of output: four blocks, and what is left of the fifth is computed.
  expect(movesOf(b)).toMatchObject({ moves: 1, movedTokens: 64, misses: 0, recomputedMoves: 0 });
  expect(movesOf(a)).toMatchObject({ publishes: 1, publishedTokens: 64 });
  expect(b.server.engine.connector).toMatchObject({ hitTokens: 64, staleTokens: 0 });
});

test("what a server sees is gone when the request has begun, and its KV when it has ended", async () => {
  const pair = new Pair();
  const [a, b] = [await pair.add(), await pair.add()];
  const id = pair.newId();
  const prompt = Array.from({ length: 50 }, (_, i) => 30 + i);
  const first = await pair.chunk(a, { id, prompt, output: [], tokens: 30 });
  expect(names(a.folder)).toEqual([]);
  expect(pair.share.bytes).toBeGreaterThan(0);
  await pair.chunk(b, { id, prompt, output: first, tokens: 30, isLast: true });
  expect(names(a.folder)).toEqual([]);
  expect(names(b.folder)).toEqual([]);
  expect(pair.share.bytes).toBe(0);
});

test("a chunk that crosses no block's end leaves KV that need not be published again", async () => {
  const pair = new Pair();
  const [a, b] = [await pair.add(), await pair.add()];
  const id = pair.newId();
  const prompt = Array.from({ length: 50 }, (_, i) => 30 + i);
  const first = await pair.chunk(a, { id, prompt, output: [], tokens: 5 });
  await pair.chunk(b, { id, prompt, output: first, tokens: 5, isLast: true });
  expect(movesOf(a).publishes).toBe(0);
  expect(movesOf(b)).toMatchObject({ moves: 1, movedTokens: 48 });
});

test("what the target has computed itself is not moved", async () => {
  const pair = new Pair();
  const [a, b] = [await pair.add(), await pair.add()];
  const id = pair.newId();
  const prompt = Array.from({ length: 64 }, (_, i) => 30 + i);
  const first = await pair.chunk(b, { id, prompt, output: [], tokens: 10 });
  const second = await pair.chunk(a, { id, prompt, output: first, tokens: 5 });
  await pair.chunk(b, { id, prompt, output: [...first, ...second], tokens: 5, isLast: true });
  expect(movesOf(b)).toMatchObject({ moves: 0, recomputedMoves: 1, recomputedTokens: 5 });
  expect(movesOf(a).publishes).toBe(0);
});

test("with the folders deleted in between it is computed again", async () => {
  const pair = new Pair();
  const [a, b] = [await pair.add(), await pair.add()];
  const id = pair.newId();
  const prompt = Array.from({ length: 50 }, (_, i) => 30 + i);
  const first = await pair.chunk(a, { id, prompt, output: [], tokens: 5 });
  for (const { folder } of [a, b]) rmSync(folder, { recursive: true, force: true });
  const rest = { id, prompt, output: first, tokens: 30, isLast: true };
  const second = await pair.chunk(b, rest);
  expect([...first, ...second]).toEqual(whole(prompt, id, 35));
  expect(movesOf(b)).toMatchObject({ moves: 0, misses: 1, recomputedMoves: 1 });
  await pair.moved(a, b);
  expect(movesOf(b).moves).toBe(1);
});

test("a source that is gone, and one that does not answer, mean recomputing", async () => {
  const pair = new Pair();
  const [a, b] = [await pair.add(), await pair.add()];
  const id = pair.newId();
  const prompt = Array.from({ length: 50 }, (_, i) => 30 + i);
  const first = await pair.chunk(a, { id, prompt, output: [], tokens: 30 });
  await a.server.stop();
  const rest = { id, prompt, output: first, tokens: 30, isLast: true };
  expect((await pair.chunk(b, rest)).length).toBe(30);
  expect(movesOf(b)).toMatchObject({ moves: 0, recomputedMoves: 1 });
});

test("after a weight epoch nothing of the old one is found, on disk either", async () => {
  const pair = new Pair();
  const [a, b] = [await pair.add(), await pair.add()];
  const id = pair.newId();
  const prompt = Array.from({ length: 50 }, (_, i) => 30 + i);
  const first = await pair.chunk(a, { id, prompt, output: [], tokens: 30 });
  expect(own(a.folder).length).toBeGreaterThan(0);
  for (const { server, worker } of [a, b]) {
    if (server.engine.connector !== null) server.engine.connector.weights = 1;
    worker.send([{ kind: "advance", epoch: weightEpoch(1) }]);
  }
  expect([names(a.folder), names(b.folder), pair.share.bytes]).toEqual([[], [], 0]);
  await pair.chunk(b, { id, prompt, output: first, tokens: 30 });
  await pair.moved(a, b);
  const { connector } = b.server.engine;
  expect(connector).toMatchObject({ hitTokens: 64, staleTokens: 0 });
});

test("reload_weights: KV that was stored before is not used after", async () => {
  const pair = new Pair();
  const [a, b] = [await pair.add(), await pair.add()];
  const id = pair.newId();
  const prompt = Array.from({ length: 50 }, (_, i) => 30 + i);
  await pair.chunk(a, { id, prompt, output: [], tokens: 30 });
  for (const { worker } of [a, b]) {
    worker.send([{ kind: "reload", modelPath: "/weights", epoch: weightEpoch(1) }]);
  }
  await pair.moved(a, b);
  expect(b.server.engine.connector).toMatchObject({ weights: 1, staleTokens: 0 });
  expect(movesOf(b).moves).toBe(1);
});

test("what is published while the weights change is thrown away, and nobody finds it", async () => {
  const pair = new Pair();
  const [a, b] = [await pair.add(), await pair.add()];
  const id = pair.newId();
  const prompt = Array.from({ length: 50 }, (_, i) => 30 + i);
  const first = await pair.chunk(a, { id, prompt, output: [], tokens: 30 });
  a.server.engine.pause("keep");
  // Its KV is wanted from a server that does not move, and then nobody wants it any more.
  void pair.chunk(b, { id, prompt, output: first, tokens: 30 });
  await until(() => a.server.engine.waiting > 0);
  for (const { worker } of [a, b]) worker.send([{ kind: "advance", epoch: weightEpoch(1) }]);
  const stored = a.server.engine.connector?.stores ?? 0;
  a.server.engine.resume();
  const again = { id: pair.newId(), prompt: [...prompt, ...first], output: [], tokens: 5 };
  await pair.chunk(a, { ...again, isLast: true });
  expect(a.server.engine.connector?.stores).toBe(stored + 2);
  expect(a.server.engine.connector?.hitTokens).toBe(0);
  expect(pair.share.bytes).toBe(0);
  expect(movesOf(a).publishes).toBe(0);
});

test("what an earlier run left in the folder goes before the server serves", async () => {
  const pair = new Pair();
  const [a, b] = [await pair.add(), await pair.add()];
  const id = pair.newId();
  const prompt = Array.from({ length: 50 }, (_, i) => 30 + i);
  // Of other weights: a server of another run, that the sidecar was not there to tidy up after.
  a.server.engine.connector?.scheduled(prompt, 0);
  const { folder } = a;
  expect(names(folder).length).toBe(1);
  const other = new Pair();
  const again = await other.add({ folder });
  if (again.server.engine.connector !== null) again.server.engine.connector.weights = 7;
  await other.chunk(again, { id, prompt, output: [], tokens: 5, isLast: true });
  expect(again.server.engine.connector).toMatchObject({ hitTokens: 0, staleTokens: 0 });
  expect(b.server.endings).toEqual([]);
});

test("servers with one folder are told apart from none: nothing moves, and it is said", async () => {
  const pair = new Pair();
  const a = await pair.add();
  const b = await pair.add({ folder: a.folder });
  expect(b.warnings.join()).toContain("another server has the same folder");
  await pair.moved(a, b);
  expect(movesOf(b)).toMatchObject({ moves: 0 });
});

test("a folder that is not on this machine is refused: KV of old weights could not be taken away", async () => {
  const pair = new Pair();
  const server = await VllmStandIn.start({ kvConnector: "SharedStorageConnector" });
  cleanups.push(() => server.stop());
  const opened = openVllmWorker({ workerId: workerId(9), url: server.url, kvShare: pair.share });
  expect(opened).rejects.toThrow("keeps KV by its tokens alone");
});

test("a connector that is not known is named, and requests are served", async () => {
  const pair = new Pair();
  const server = await VllmStandIn.start({ kvConnector: "NewConnector" });
  cleanups.push(() => server.stop());
  const warnings: string[] = [];
  const worker = await openVllmWorker({
    workerId: workerId(9),
    url: server.url,
    kvShare: pair.share,
    notice: (notice) => notice.kind === "warning" && warnings.push(notice.message),
  });
  cleanups.push(() => worker.close());
  expect(warnings.join()).toContain("no KV moves through NewConnector");
  expect(worker.stats().kvMoves).toBeUndefined();
});

test("kept KV stays within its bound: the oldest goes", async () => {
  const pair = new Pair(3000);
  const a = await pair.add();
  for (let i = 0; i < 5; i += 1) {
    const prompt = Array.from({ length: 50 }, (_, k) => 30 + k + i);
    await pair.chunk(a, { id: pair.newId(), prompt, output: [], tokens: 5 });
    expect(pair.share.bytes).toBeLessThanOrEqual(3000);
  }
  expect(pair.share.bytes).toBeGreaterThan(0);
});

test("a shared store that saves output is asked for nothing: moves are seen by their hits", async () => {
  const pair = new Pair();
  const kvPool = { blocks: new Set<number>(), savesOutput: true };
  const [a, b] = [
    await pair.add({ kvFolder: null, kvPool }),
    await pair.add({ kvFolder: null, kvPool }),
  ];
  await pair.moved(a, b);
  expect(movesOf(a).publishes).toBe(0);
  expect(movesOf(b)).toMatchObject({ moves: 1, movedTokens: 64, misses: 0 });
  expect(b.server.engine.externalTokens).toBe(64);
});

test("a shared store of prompts is given the generated tokens as a prompt first", async () => {
  const pair = new Pair();
  const kvPool = { blocks: new Set<number>(), savesOutput: false };
  const [a, b] = [
    await pair.add({ kvFolder: null, kvPool }),
    await pair.add({ kvFolder: null, kvPool }),
  ];
  await pair.moved(a, b);
  expect(movesOf(a).publishes).toBe(1);
  expect(movesOf(b)).toMatchObject({ moves: 1, movedTokens: 64, misses: 0 });
});

test("a shared store's keys hold the epoch: nothing of another one is found", async () => {
  const pair = new Pair();
  const kvPool = { blocks: new Set<number>(), savesOutput: true };
  const [a, b] = [
    await pair.add({ kvFolder: null, kvPool }),
    await pair.add({ kvFolder: null, kvPool }),
  ];
  const id = pair.newId();
  const prompt = Array.from({ length: 50 }, (_, i) => 30 + i);
  const first = await pair.chunk(a, { id, prompt, output: [], tokens: 30 });
  for (const { worker } of [a, b]) worker.send([{ kind: "advance", epoch: weightEpoch(1) }]);
  await pair.chunk(b, { id, prompt, output: first, tokens: 10 });
  expect(b.server.engine.externalTokens).toBe(0);
});

// Lengths around a block's end, and prompts of one token, end a server whose folder is not kept in order.
test("no text of any length ends a server, alone or among others", async () => {
  const length = fc.oneof(
    fc.integer({ min: 1, max: 3 }),
    fc.integer({ min: BLOCK - 2, max: BLOCK + 3 }),
    fc.integer({ min: 2 * BLOCK - 2, max: 2 * BLOCK + 3 }),
  );
  const act = fc.record({
    length,
    side: fc.integer({ min: 0, max: 1 }),
    parts: fc.array(length, { minLength: 1, maxLength: 3 }),
  });
  const pair = new Pair();
  const sides = [await pair.add(), await pair.add()];
  await fc.assert(
    fc.asyncProperty(fc.array(act, { minLength: 1, maxLength: 8 }), async (acts) => {
      await Promise.all(
        acts.map(async ({ length: promptLength, side, parts }) => {
          const id = pair.newId();
          // Many have the same beginning.
          const prompt = Array.from({ length: promptLength }, (_, i) => 40 + i);
          let output: number[] = [];
          for (const [i, tokens] of parts.entries()) {
            const at = sides[(side + i) % 2];
            if (at === undefined) throw new Error("there are two sides");
            const isLast = i === parts.length - 1;
            output = [...output, ...(await pair.chunk(at, { id, prompt, output, tokens, isLast }))];
          }
          const total = parts.reduce((sum, tokens) => sum + tokens, 0);
          expect(output).toEqual(whole(prompt, id, total));
        }),
      );
      expect(sides.flatMap(({ server }) => server.endings)).toEqual([]);
    }),
    { numRuns: 15, interruptAfterTimeLimit: 10_000, endOnFailure: true },
  );
});
