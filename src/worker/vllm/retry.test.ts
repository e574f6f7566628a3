import { expect, test } from "bun:test";
import { streamInterval } from "./retry.ts";

test("streamInterval: a token while streams are few, more with each four of them, never above the limit", () => {
  expect([0, 3, 4, 32, 60, 10_000].map((streams) => streamInterval(streams, 16))).toEqual([
    1, 1, 2, 9, 16, 16,
  ]);
});
