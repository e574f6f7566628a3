// The line of a finished response.

import { expect, test } from "bun:test";
import fc from "fast-check";
import { weightEpoch, weightsId, workerId } from "../../core/base/ids.ts";
import { type FinishedResponse, formatFloat32, formatLine } from "./response-line.ts";

const F16 = weightsId("f16-0123456789abcdef");

function response(overrides: Partial<FinishedResponse> = {}): FinishedResponse {
  return {
    group: "g",
    index: 0,
    promptTokenIds: Int32Array.of(5, 6),
    tokenIds: Int32Array.of(1, 2, 3),
    text: 'a "b"\n\u2028 🧮',
    logprobs: Float32Array.of(-0.1, -1.3862944, 0),
    finishReason: "stop",
    chunks: [
      { workerId: workerId(1), epoch: weightEpoch(4), weights: null, offset: 0, tokens: 2 },
      { workerId: workerId(0), epoch: weightEpoch(4), weights: F16, offset: 2, tokens: 1 },
    ],
    ...overrides,
  };
}

test("formatLine: holds the agreed fields in the agreed shape", () => {
  const line = formatLine(response());
  expect(line).not.toMatch(/[\n\u0085\u2028\u2029]/);
  expect(JSON.parse(line)).toEqual({
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

test("formatLine: tokens of several epochs have no common one, and each chunk has its own", () => {
  const chunk = (epoch: number, offset: number, tokens: number) => ({
    ...{ workerId: workerId(0), epoch: weightEpoch(epoch), weights: null, offset, tokens },
  });
  const chunks = [chunk(3, 0, 0), chunk(4, 0, 2), chunk(5, 2, 1)];
  const mixed = JSON.parse(formatLine(response({ chunks, versionOf: (epoch) => `step-${epoch}` })));
  expect(mixed.weight_epoch).toBeNull();
  expect(mixed.chunks[2]).toEqual({
    ...{ worker: 0, offset: 2, tokens: 1, weight_epoch: 5, weight_version: "step-5" },
  });
  // A chunk without tokens has no part in it.
  const one = JSON.parse(formatLine(response({ chunks: [chunk(3, 0, 0), chunk(4, 0, 3)] })));
  expect(one.weight_epoch).toBe(4);
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
