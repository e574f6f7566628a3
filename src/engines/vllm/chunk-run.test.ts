import { expect, test } from "bun:test";
import { runCommand, samplingOf, specOf } from "../../../test/suite/request-spec.ts";
import { ChunkRun } from "./chunk-run.ts";

test("chunk run: an undivided response that begins anew behind its stop token does not end without tokens", () => {
  const sampling = samplingOf({ tokensMax: 8, stopTokenIds: [5] });
  const request = specOf(0, { prompt: Int32Array.of(1), sampling, divisible: false });
  const run = new ChunkRun(runCommand(request, { chunkTokens: 8 }), 1);
  const piece = { kind: "piece", alternatives: [], usage: null, weightVersion: null } as const;
  run.begin();
  const said = { ...piece, tokens: [3, 5], logprobs: [-1, -2], finishReason: null };
  expect([run.take(said), run.isFull, run.outcome(100).kind]).toEqual([true, true, "finished"]);
  // The server gave the request up before it said that it was over.
  run.begin();
  expect([run.isFull, run.outcome(100).kind]).toEqual([false, "short"]);
  expect([run.take(said), run.outcome(100).kind, run.made]).toEqual([true, "finished", 2]);
});

test("chunk run: keeps no token that was delivered, and continues after those of the response", () => {
  const sampling = samplingOf({ tokensMax: 8, stopTokenIds: [] });
  const request = specOf(0, { prompt: Int32Array.of(1), sampling });
  const run = new ChunkRun(runCommand(request, { output: [2], chunkTokens: 7 }), 1);
  const piece = { kind: "piece", alternatives: [], usage: null, weightVersion: null } as const;
  const take = (...tokens: number[]) => {
    const logprobs = tokens.map((token) => -token);
    run.take({ ...piece, tokens, logprobs, finishReason: null });
    const event = run.deliver(false);
    if (event?.kind !== "tokens") throw new Error("it has new tokens");
    return event;
  };
  run.begin();
  const first = take(3, 4);
  expect([first.offset, [...first.tokens], [...first.logprobs]]).toEqual([1, [3, 4], [-3, -4]]);
  const second = take(5);
  expect([second.offset, [...second.tokens], run.deliver(false)]).toEqual([3, [5], null]);
  expect(second.tokens.buffer).toBe(first.tokens.buffer);
  run.begin();
  expect([...run.context(Int32Array.of(2, 3, 4, 5))]).toEqual([1, 2, 3, 4, 5]);
  expect(() => run.context(Int32Array.of(2, 3))).toThrow("after all tokens were delivered");
});

test("chunk run: a count that is no whole number, shrinks or is too small breaks the stream, and adds no token", () => {
  const sampling = samplingOf({ tokensMax: 8, stopTokenIds: [] });
  const request = specOf(0, { prompt: Int32Array.of(1), sampling });
  const piece = { kind: "piece", alternatives: [], weightVersion: null } as const;
  const taken = (tokens: number[], completionTokens: number, run: ChunkRun) =>
    run.take({
      ...piece,
      tokens,
      logprobs: tokens.map(() => -1),
      finishReason: null,
      usage: { promptTokens: 1, completionTokens, cachedTokens: null },
    });
  for (const [tokens, count] of [
    [[5], 3],
    [[5, 6], 2.5],
    [[5], 0],
    [[5, 6], 1],
    [[5], -1],
    [[5], Number.NaN],
    [[5], 2 ** 40],
    [[5.5], 2],
    [[-1], 2],
  ] as const) {
    const run = new ChunkRun(runCommand(request, { chunkTokens: 8 }), 1);
    run.begin();
    expect([taken([3, 4], 2, run), run.made]).toEqual([true, 2]);
    const isRight = tokens.length === 1 && tokens[0] === 5 && count === 3;
    expect([count, taken([...tokens], count, run)]).toEqual([count, isRight]);
    run.deliver(false);
    const output = Int32Array.of(3, 4, 5);
    expect([...run.context(output)]).toEqual(isRight ? [1, 3, 4, 5] : [1, 3, 4]);
  }
});
