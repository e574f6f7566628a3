import { expect, test } from "bun:test";
import { flagsOf, interleaved } from "./harness.ts";

test("flagsOf: takes values by the kinds of the defaults, and refuses what is none", () => {
  const defaults = { kvBlocks: 8, part: 0, name: "a", file: null, deep: false } as const;
  const read = (...args: string[]) => flagsOf(import.meta.path, defaults, args);
  expect(read()).toEqual({ ...defaults, json: null, report: null, files: [] } as never);
  const given = read("x", "--kv-blocks", "2", "--file", "f", "--deep", "--report", "r.json");
  expect(given).toMatchObject({ kvBlocks: 2, name: "a", file: "f", deep: true });
  expect([given.json, given.files]).toEqual(["r.json", ["x"]]);
  expect(() => read("--kv-blocks", "0")).toThrow("--kv-blocks is 0; it is a number above 0");
  expect(() => read("--part", "-1")).toThrow();
  expect(() => read("--part=x")).toThrow("--part is x; it is a number from 0 on");
  expect(() => read("--unknown")).toThrow();
});

test("interleaved: every system in each round, each first in turn, the first round uncounted", async () => {
  const order: string[] = [];
  const saved: number[] = [];
  const run = async (name: string, round: number) => {
    order.push(`${name}${round}`);
    return round;
  };
  const runs = await interleaved(["a", "b"], 2, run, (so) => saved.push(so.get("a")?.length ?? 0));
  expect(order).toEqual(["a0", "b0", "b1", "a1", "a2", "b2"]);
  expect([...runs.values(), saved]).toEqual([
    [1, 2],
    [1, 2],
    [1, 2],
  ]);
});
