// The line of a finished response.

import { expect, test } from "bun:test";
import fc from "fast-check";
import { weightEpoch, weightsId, workerId } from "../../core/base/ids.ts";
import type { Chunk, RolloutResponse } from "../../core/request/response.ts";
import { formatFloat32, type LineOptions, linesOf } from "./response-line.ts";

const F16 = weightsId("f16-0123456789abcdef");

const CHUNKS = [
  { workerId: workerId(1), epoch: weightEpoch(4), weights: null, offset: 0, tokens: 2 },
  { workerId: workerId(0), epoch: weightEpoch(4), weights: F16, offset: 2, tokens: 1 },
];

/** The only line of a group, read. */
function lineOf(chunks: readonly Chunk[] = CHUNKS, options: Partial<LineOptions> = {}) {
  const response = {
    finish: "stop",
    refusal: null,
    chunks,
    tokens: () => Int32Array.of(1, 2, 3),
    logprobs: () => Float32Array.of(-0.1, -1.3862944, 0),
  } as Partial<RolloutResponse> as RolloutResponse;
  const finished = [{ spec: { prompt: Int32Array.of(5, 6), sampleIndex: 0 }, response }];
  const text = { decode: () => 'a "b"\n\u2028 🧮' };
  const lines = linesOf("g", finished, { text, skipSpecial: true, ...options });
  expect(lines).toMatch(/^[^\n\u0085\u2028\u2029]*\n$/);
  return JSON.parse(lines);
}

test("linesOf: a line holds the agreed fields in the agreed shape", () => {
  expect(lineOf()).toEqual({
    group: "g",
    index: 0,
    prompt_token_ids: [5, 6],
    token_ids: [1, 2, 3],
    text: 'a "b"\n\u2028 🧮',
    logprobs: [-0.1, -1.3862944, 0],
    finish_reason: "stop",
    weight_epoch: 4,
    chunks: [
      { worker: 1, offset: 0, tokens: 2, weight_epoch: 4 },
      { worker: 0, offset: 2, tokens: 1, weight_epoch: 4, weights: F16 },
    ],
  });
});

test("linesOf: tokens of several epochs have no common one, and each chunk has its own", () => {
  const chunk = (epoch: number, offset: number, tokens: number) => ({
    workerId: workerId(0),
    epoch: weightEpoch(epoch),
    weights: null,
    offset,
    tokens,
  });
  const chunks = [chunk(3, 0, 0), chunk(4, 0, 2), chunk(5, 2, 1)];
  const mixed = lineOf(chunks, { versionOf: (epoch) => `step-${epoch}` });
  expect(mixed.weight_epoch).toBeNull();
  expect(mixed.chunks[2]).toEqual({
    worker: 0,
    offset: 2,
    tokens: 1,
    weight_epoch: 5,
    weight_version: "step-5",
  });
  // A chunk without tokens has no part in it.
  expect(lineOf([chunk(3, 0, 0), chunk(4, 0, 3)]).weight_epoch).toBe(4);
});

test("formatFloat32: reads back as the same bits, and JSON takes it", () => {
  fc.assert(
    fc.property(fc.float({ noNaN: true, noDefaultInfinity: true }), (value) => {
      const text = formatFloat32(value);
      expect(Math.fround(JSON.parse(text))).toBe(value);
      const digits = text
        .replace(/e.*/, "")
        .replaceAll(/[-.]/g, "")
        .replaceAll(/^0+|0+$/g, "");
      expect(digits.length).toBeLessThanOrEqual(9);
    }),
    { numRuns: 2000 },
  );
});
