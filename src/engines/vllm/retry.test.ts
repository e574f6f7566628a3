import { expect, test } from "bun:test";
import { streamInterval } from "./chunk-request.ts";

test("streamInterval: four tokens for each open stream, never above the limit", () => {
  expect([0, 1, 2, 7, 8, 10_000].map((streams) => streamInterval(streams, 32))).toEqual([
    4, 4, 8, 28, 32, 32,
  ]);
});
