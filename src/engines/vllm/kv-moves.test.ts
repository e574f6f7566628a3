// Requests that move between two stand-ins with one KV pool: what is found, what is computed again, and that nothing of
// other weights is used.

import { afterEach, expect, test } from "bun:test";
import { standInResponse } from "../../../test/faults/stand-in/tokens.ts";
import { type StandInOptions, VllmStandIn } from "../../../test/faults/stand-in/vllm-stand-in.ts";
import { benchOf, closeBenches, started, type VllmBench } from "../../../test/suite/vllm-bench.ts";
import { weightEpoch, workerId } from "../../core/base/ids.ts";
import type { KvMoveStats } from "../../core/rollout/worker.ts";
import { openVllmWorker } from "./open.ts";

const PROMPT = Array.from({ length: 40 }, (_, i) => 30 + i);
afterEach(closeBenches);

let sides = 0;

async function add(options: Partial<StandInOptions> = {}) {
  sides += 1;
  const server = await started(VllmStandIn.start(options));
  return await benchOf(server, { workerId: workerId(sides) });
}

/** Generates a chunk; returns the tokens that it brought. */
async function chunk(bench: VllmBench, text: { id: number; output: number[]; tokens: number }) {
  const { id, output, tokens: chunkTokens } = text;
  bench.heard.length = 0;
  bench.run({ id, prompt: PROMPT, output, chunkTokens, sampling: { tokensMax: 2000 } });
  await bench.kind("chunk_done");
  return bench.of("tokens").flatMap(({ tokens }) => [...tokens]);
}

function movesOf({ worker }: VllmBench): KvMoveStats {
  const { kvMoves } = worker.stats();
  if (kvMoves === undefined) throw new Error("it has a connector");
  return kvMoves;
}

const pool = (savesOutput: boolean): Partial<StandInOptions> => ({
  kvPool: { blocks: new Set<number>(), savesOutput },
});

/** Two servers, of which one has generated the first tokens. */
async function pair(options = pool(true)) {
  const a = await add(options);
  const b = await add(options);
  return { a, b, first: await chunk(a, { id: 1, output: [], tokens: 30 }) };
}

test("a request that moves finds its output's KV, and the tokens are the same", async () => {
  const { a, b, first } = await pair();
  const rest = await chunk(b, { id: 1, output: first, tokens: 20 });
  // 40 prompt tokens and 30 of output are four blocks of 16 and six tokens.
  expect(movesOf(b)).toMatchObject({ moves: 1, movedTokens: 24, recomputedMoves: 0 });
  expect(movesOf(a)).toMatchObject({ moves: 0, recomputedMoves: 0 });
  expect(b.server.engine.externalTokens).toBe(64);
  const whole = { prompt: PROMPT, sample: 1, tokensMax: 50, stopTokenIds: [] };
  expect([...first, ...rest]).toEqual(standInResponse(whole));
});

test("a request that stays has not moved, and one that comes back has only what it lacks", async () => {
  const { a, b, first } = await pair();
  const second = await chunk(a, { id: 1, output: first, tokens: 30 });
  expect(movesOf(a)).toMatchObject({ moves: 0, recomputedMoves: 0 });
  const third = await chunk(b, { id: 1, output: [...first, ...second], tokens: 30 });
  expect(movesOf(b)).toMatchObject({ moves: 1, movedTokens: 96 - 40 });
  await chunk(a, { id: 1, output: [...first, ...second, ...third], tokens: 5 });
  // Of 130 tokens, it computed 100 itself.
  expect(movesOf(a)).toMatchObject({ moves: 1, movedTokens: 128 - 100 });
});

test("a pool that has dropped the KV, and one of prompts alone, mean that it is computed again", async () => {
  for (const options of [pool(true), pool(false)]) {
    const { b, first } = await pair(options);
    if (options.kvPool?.savesOutput) options.kvPool.blocks.clear();
    await chunk(b, { id: 1, output: first, tokens: 20 });
    expect(movesOf(b)).toMatchObject({ moves: 0, recomputedMoves: 1 });
    expect(movesOf(b).recomputedTokens).toBeGreaterThanOrEqual(70 - 32);
  }
});

test("the pool's keys hold the epoch: nothing of another one is found", async () => {
  const { a, b, first } = await pair();
  for (const { worker } of [a, b]) worker.send([{ kind: "advance", epoch: weightEpoch(1) }]);
  await chunk(b, { id: 1, output: first, tokens: 10 });
  expect(b.server.engine.externalTokens).toBe(0);
});

test("a chunk marks the last one, so that an engine may drop its KV", async () => {
  const a = await add(pool(true));
  await chunk(a, { id: 1, output: [], tokens: 30 });
  const first = await chunk(a, { id: 2, output: [], tokens: 1970 });
  await chunk(a, { id: 2, output: first, tokens: 400 });
  const told = a.server.bodies.map(({ sampling_params: params }) =>
    Reflect.get(Reflect.get(Object(params), "extra_args") ?? {}, "foretoken_last"),
  );
  expect(told.slice(-3)).toEqual([0, 0, 1]);
});

test("a server whose connector may find KV of old weights is refused by name", async () => {
  for (const kvConnector of ["SharedStorageConnector", "NewConnector"]) {
    const server = await started(VllmStandIn.start({ kvConnector }));
    const opened = openVllmWorker({ workerId: workerId(9), url: server.url });
    expect(opened).rejects.toThrow(`${server.url} has ${kvConnector}: `);
  }
});

test("a connector that no other server finds anything in is named, and requests are served", async () => {
  const side = await add({ kvConnector: "NixlConnector" });
  expect(JSON.stringify(side.notices)).toContain("no KV moves through NixlConnector");
  expect(side.worker.stats().kvMoves).toBeUndefined();
});
