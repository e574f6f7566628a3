import { expect, test } from "bun:test";
import { samplingOf, specOf } from "../../../test/suite/request-spec.ts";
import { ChunkRun } from "./chunk-run.ts";
import type { StreamEvent } from "./event.ts";

function newRun(
  options: { chunkTokens?: number; stop?: number; divisible?: boolean; output?: number[] } = {},
): ChunkRun {
  const { chunkTokens = 6, stop, divisible = true, output = [] } = options;
  const run = new ChunkRun({
    spec: specOf(1, {
      sampleIndex: 0,
      prompt: Int32Array.of(50, 51),
      sampling: samplingOf({
        seed: 1,
        tokensMax: 10,
        stopTokenIds: stop === undefined ? [] : [stop],
      }),
      divisible,
    }),
    output: Int32Array.from(output),
    chunkTokens,
    draft: null,
    isUrgent: false,
    chunk: 1,
  });
  run.begin();
  return run;
}

/** `count`: output tokens that the server says it has made; null: it does not say. */
function piece(
  tokens: number[],
  count: number | null,
  finishReason: string | null = null,
): Extract<StreamEvent, { kind: "piece" }> {
  const usage =
    count === null ? null : { promptTokens: 2, completionTokens: count, cachedTokens: null };
  const logprobs = tokens.map((token) => -token);
  const told = { finishReason, usage, weightVersion: null };
  return { kind: "piece", tokens, logprobs, alternatives: [], ...told };
}

const textOf = (run: ChunkRun) => [...run.context()].slice(2);

test("take: a repeat is skipped, an overlap taken from where it is new", () => {
  const run = newRun();
  run.take(piece([1, 2], 2));
  expect(run.take(piece([1, 2], 2))).toBe("more");
  expect(run.take(piece([2, 3], 3))).toBe("more");
  expect(textOf(run)).toEqual([1, 2, 3]);
});

test("take: a gap is broken and takes nothing", () => {
  const run = newRun();
  run.take(piece([1], 1));
  expect(run.take(piece([3], 3))).toBe("broken");
  expect(textOf(run)).toEqual([1]);
});

test("take: without counts the order is that of the stream", () => {
  const run = newRun();
  run.take(piece([1, 2], null));
  run.take(piece([3], null));
  expect(textOf(run)).toEqual([1, 2, 3]);
});

test("take: what is no token, or has no logprob, is broken", () => {
  for (const wrong of [-1, 1.5, Number.NaN, 2 ** 31]) {
    expect(newRun().take(piece([1, wrong], 2))).toBe("broken");
  }
  expect(newRun().take({ ...piece([1, 2], 2), logprobs: [-1] })).toBe("broken");
});

test("take: nothing comes after a stop token, nor after the chunk's last", () => {
  const run = newRun({ stop: 2 });
  expect(run.take(piece([1, 2, 3], 3))).toBe("full");
  expect(textOf(run)).toEqual([1, 2]);
  expect(run.outcome(100)).toEqual({ kind: "finished", reason: "stop" });
  const long = newRun({ chunkTokens: 2 });
  expect(long.take(piece([1, 2, 3], 3))).toBe("full");
  expect(textOf(long)).toEqual([1, 2]);
  expect(long.outcome(100)).toEqual({ kind: "used_up" });
});

test("begin: the next attempt counts from where the tokens end", () => {
  const run = newRun({ output: [7] });
  run.take(piece([1, 2], 2));
  run.begin();
  expect(run.hasProgressed).toBe(false);
  expect(run.take(piece([3], 1))).toBe("more");
  expect(textOf(run)).toEqual([7, 1, 2, 3]);
  expect(run.offset).toBe(4);
});

test("begin: what must come in one piece restarts, and is passed on at its end only", () => {
  const run = newRun({ divisible: false, chunkTokens: 10 });
  run.take(piece([1, 2], 2));
  expect(run.deliver(false)).toBe(null);
  run.begin();
  expect(textOf(run)).toEqual([]);
  run.take(piece([4, 5], 2, "stop"));
  expect(run.deliver(true)).toMatchObject({ offset: 0, tokens: Int32Array.of(4, 5) });
});

test("deliver: each token once, with its offset in the response", () => {
  const run = newRun({ output: [7] });
  run.take(piece([1, 2], 2));
  expect(run.deliver(false)).toMatchObject({
    offset: 1,
    tokens: Int32Array.of(1, 2),
    logprobs: Float32Array.of(-1, -2),
  });
  expect(run.deliver(false)).toBe(null);
  run.take(piece([3], 3));
  expect(run.deliver(false)).toMatchObject({ offset: 3, tokens: Int32Array.of(3) });
});

test("outcome: the response's length, the server's context, and an early end", () => {
  const long = newRun({ output: [1, 2, 3, 4, 5, 6, 7, 8] });
  long.take(piece([9, 10], 2, "length"));
  expect(long.outcome(100)).toEqual({ kind: "finished", reason: "length" });
  const run = newRun();
  run.take(piece([1, 2], 2, "length"));
  expect(run.outcome(4)).toEqual({ kind: "finished", reason: "length" });
  expect(run.outcome(5)).toEqual({ kind: "short" });
  run.take(piece([], 2, "abort"));
  expect(run.outcome(5)).toEqual({ kind: "short" });
});
