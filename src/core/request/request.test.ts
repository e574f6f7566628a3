import { expect, test } from "bun:test";
import { drawKey } from "./request.ts";

test("drawKey: seed (all 53 bits), group and index enter", () => {
  const keys = [
    drawKey(1, "a", 0),
    drawKey(2, "a", 0),
    drawKey(1 + 2 ** 33, "a", 0),
    drawKey(-1, "a", 0),
    drawKey(1, "b", 0),
    drawKey(1, "a", 1),
  ].map((key) => JSON.stringify(key));
  expect(new Set(keys).size).toBe(keys.length);
  expect(JSON.stringify(drawKey(1, "a", 0))).toBe(keys[0] ?? "");
});
