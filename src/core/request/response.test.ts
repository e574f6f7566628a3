import { expect, test } from "bun:test";
import { weightEpoch, weightsId, workerId } from "../base/ids.ts";
import { RolloutResponse } from "./response.ts";

const ids = (...tokens: number[]) => Int32Array.from(tokens);
const logprobs = (count: number) => new Float32Array(count).fill(-1);

test("append: takes what is new and skips what repeats", () => {
  const response = new RolloutResponse(100);
  response.append(0, ids(1, 2, 3), logprobs(3));
  expect(response.append(1, ids(2, 3, 4), logprobs(3))).toEqual({
    kind: "ok",
    fresh: 1,
    repeated: 2,
  });
  expect([...response.tokens()]).toEqual([1, 2, 3, 4]);
});

test("append: a gap changes nothing and returns how much is missing", () => {
  const response = new RolloutResponse(100);
  response.append(0, ids(1), logprobs(1));
  expect(response.append(3, ids(9), logprobs(1))).toEqual({ kind: "gap", missing: 2 });
  expect([...response.tokens()]).toEqual([1]);
});

test("append: refuses more than tokensMax", () => {
  const response = new RolloutResponse(2);
  expect(() => response.append(0, ids(1, 2, 3), logprobs(3))).toThrow("tokensMax");
});

test("openChunk: counts each chunk's tokens from its offset", () => {
  const epoch = weightEpoch(3);
  const response = new RolloutResponse(100);
  response.openChunk(workerId(0), epoch);
  response.append(0, ids(1, 2), logprobs(2));
  response.openChunk(workerId(1), epoch, weightsId("f16-1"));
  response.append(2, ids(3), logprobs(1));
  expect(response.chunks).toEqual([
    { workerId: workerId(0), epoch, weights: null, offset: 0, tokens: 2 },
    { workerId: workerId(1), epoch, weights: weightsId("f16-1"), offset: 2, tokens: 1 },
  ]);
});
