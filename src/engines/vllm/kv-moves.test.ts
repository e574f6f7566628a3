// Requests that move between two stand-ins with one KV pool: what is found, what is computed again, and that nothing of
// other weights is used.

import { afterEach, expect, test } from "bun:test";
import { standInResponse } from "../../../test/faults/stand-in/tokens.ts";
import { type StandInOptions, VllmStandIn } from "../../../test/faults/stand-in/vllm-stand-in.ts";
import { runCommand, samplingOf, specOf } from "../../../test/suite/request-spec.ts";
import { weightEpoch, workerId } from "../../core/base/ids.ts";
import type { KvMoveStats, WorkerEvent } from "../../core/rollout/worker.ts";
import { openVllmWorker } from "./open.ts";
import type { VllmWorker } from "./worker.ts";

const PROMPT = Array.from({ length: 40 }, (_, i) => 30 + i);
const cleanups: (() => Promise<void> | void)[] = [];
afterEach(async () => {
  for (const cleanup of cleanups.splice(0).toReversed()) await cleanup();
});

interface Side {
  readonly server: VllmStandIn;
  readonly worker: VllmWorker;
  readonly warnings: string[];
}

class Pair {
  readonly #events: WorkerEvent[] = [];
  readonly #waiting: (() => void)[] = [];
  #sides = 0;

  async add(options: Partial<StandInOptions> = {}): Promise<Side> {
    const server = await VllmStandIn.start(options);
    cleanups.push(() => server.stop());
    const warnings: string[] = [];
    this.#sides += 1;
    const worker = await openVllmWorker({
      workerId: workerId(this.#sides),
      url: server.url,
      limits: { retryMs: 1, retryMsMax: 2, pollMs: 5 },
      notice: (notice) => notice.kind === "warning" && warnings.push(notice.message),
    });
    cleanups.push(() => worker.close());
    worker.listen((_, events) => {
      this.#events.push(...events);
      for (const wake of this.#waiting.splice(0)) wake();
    });
    return { server, worker, warnings };
  }

  /** Generates a chunk; returns the tokens that it brought. */
  async chunk({ worker }: Side, text: { id: number; output: number[]; tokens: number }) {
    const { id, output, tokens } = text;
    const from = this.#events.length;
    const prompt = Int32Array.from(PROMPT);
    const sampling = samplingOf({ seed: 1, tokensMax: 2000 });
    worker.send([runCommand(specOf(id, { prompt, sampling }), { output, chunkTokens: tokens })]);
    const mine = () =>
      this.#events.slice(from).filter((e) => "requestId" in e && e.requestId === id);
    while (!mine().some(({ kind }) => kind === "chunk_done")) {
      await new Promise<void>((resolve) => this.#waiting.push(resolve));
    }
    return mine().flatMap((event) => (event.kind === "tokens" ? [...event.tokens] : []));
  }
}

function movesOf({ worker }: Side): KvMoveStats {
  const { kvMoves } = worker.stats();
  if (kvMoves === undefined) throw new Error("it has a connector");
  return kvMoves;
}

const pool = (savesOutput: boolean): Partial<StandInOptions> => ({
  kvPool: { blocks: new Set<number>(), savesOutput },
});

test("a request that moves finds its output's KV, and the tokens are the same", async () => {
  const pair = new Pair();
  const options = pool(true);
  const [a, b] = [await pair.add(options), await pair.add(options)];
  const first = await pair.chunk(a, { id: 1, output: [], tokens: 30 });
  const rest = await pair.chunk(b, { id: 1, output: first, tokens: 20 });
  // 40 prompt tokens and 30 of output are four blocks of 16 and six tokens.
  expect(movesOf(b)).toMatchObject({ moves: 1, movedTokens: 24, recomputedMoves: 0 });
  expect(movesOf(a)).toMatchObject({ moves: 0, recomputedMoves: 0 });
  expect(b.server.engine.externalTokens).toBe(64);
  const whole = { prompt: PROMPT, sample: 1, tokensMin: 0, tokensMax: 50, stopTokenIds: [] };
  expect([...first, ...rest]).toEqual(
    standInResponse({ ...whole, prompt: Int32Array.from(PROMPT) }),
  );
});

test("a request that stays has not moved, and one that comes back has only what it lacks", async () => {
  const pair = new Pair();
  const options = pool(true);
  const [a, b] = [await pair.add(options), await pair.add(options)];
  const first = await pair.chunk(a, { id: 1, output: [], tokens: 30 });
  const second = await pair.chunk(a, { id: 1, output: first, tokens: 30 });
  expect(movesOf(a)).toMatchObject({ moves: 0, recomputedMoves: 0 });
  const third = await pair.chunk(b, { id: 1, output: [...first, ...second], tokens: 30 });
  expect(movesOf(b)).toMatchObject({ moves: 1, movedTokens: 96 - 40 });
  await pair.chunk(a, { id: 1, output: [...first, ...second, ...third], tokens: 5 });
  // Of 130 tokens, it computed 100 itself.
  expect(movesOf(a)).toMatchObject({ moves: 1, movedTokens: 128 - 100 });
});

test("a pool that has dropped the KV, and one of prompts alone, mean that it is computed again", async () => {
  for (const options of [pool(true), pool(false)]) {
    const pair = new Pair();
    const [a, b] = [await pair.add(options), await pair.add(options)];
    const first = await pair.chunk(a, { id: 1, output: [], tokens: 30 });
    if (options.kvPool?.savesOutput) options.kvPool.blocks.clear();
    await pair.chunk(b, { id: 1, output: first, tokens: 20 });
    expect(movesOf(b)).toMatchObject({ moves: 0, recomputedMoves: 1 });
    expect(movesOf(b).recomputedTokens).toBeGreaterThanOrEqual(70 - 32);
  }
});

test("the pool's keys hold the epoch: nothing of another one is found", async () => {
  const pair = new Pair();
  const options = pool(true);
  const [a, b] = [await pair.add(options), await pair.add(options)];
  const first = await pair.chunk(a, { id: 1, output: [], tokens: 30 });
  for (const { worker } of [a, b]) worker.send([{ kind: "advance", epoch: weightEpoch(1) }]);
  await pair.chunk(b, { id: 1, output: first, tokens: 10 });
  expect(b.server.engine.externalTokens).toBe(0);
});

test("a chunk marks the last one, so that an engine may drop its KV", async () => {
  const pair = new Pair();
  const a = await pair.add(pool(true));
  await pair.chunk(a, { id: 1, output: [], tokens: 30 });
  const first = await pair.chunk(a, { id: 2, output: [], tokens: 1970 });
  await pair.chunk(a, { id: 2, output: first, tokens: 400 });
  const told = a.server.bodies.map(({ sampling_params: params }) =>
    Reflect.get(Reflect.get(Object(params), "extra_args") ?? {}, "foretoken_last"),
  );
  expect(told.slice(-3)).toEqual([0, 0, 1]);
});

test("a server whose connector may find KV of old weights is refused by name", async () => {
  for (const kvConnector of ["SharedStorageConnector", "NewConnector"]) {
    const server = await VllmStandIn.start({ kvConnector });
    cleanups.push(() => server.stop());
    const opened = openVllmWorker({ workerId: workerId(9), url: server.url });
    expect(opened).rejects.toThrow(`${server.url} has ${kvConnector}: `);
  }
});

test("a connector that no other server finds anything in is named, and requests are served", async () => {
  const side = await new Pair().add({ kvConnector: "NixlConnector" });
  expect(side.warnings.join()).toContain("no KV moves through NixlConnector");
  expect(side.worker.stats().kvMoves).toBeUndefined();
});
