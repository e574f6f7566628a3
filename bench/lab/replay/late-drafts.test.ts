import { expect, test } from "bun:test";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { CONTEXT, Followers, keysOf, mixed } from "../../../src/tools/replay/followers.ts";
import { lateDraft } from "./late-drafts.ts";

/** Two paths: 4 5 6 7, and the less likely 8. */
const TABLE = {
  known: 3,
  tokens: Int32Array.of(4, 5, 6, 7, 8),
  parents: Int32Array.of(-1, 0, 1, 2, -1),
  probabilities: Float32Array.of(0.5, 0.45, 0.4, 0.1, 0.2),
};

function drafted(since: readonly number[], probabilityMin = 0, told: number[] = []): number[] {
  const followers = new Followers();
  for (const [i, token] of told.slice(CONTEXT).entries()) {
    followers.take(keysOf(7, 0), told.slice(i, i + CONTEXT), token);
  }
  const response = Int32Array.of(1, 2, 3, ...since);
  const tail = [...response.subarray(-CONTEXT)];
  const request = { table: TABLE, response, at: response.length, keys: keysOf(7, 2), tail };
  return lateDraft(request, followers, { tokensMax: 3, probabilityMin }).map(({ token }) => token);
}

test("late drafts: the walk follows the tokens since, then the likeliest children", () => {
  expect(drafted([])).toEqual([4, 5, 6]);
  expect(drafted([4])).toEqual([5, 6, 7]);
  expect([drafted([4, 5]), drafted([8])]).toEqual([[6, 7], []]);
  expect([drafted([4, 5], 0.5), drafted([4, 5], 0.2)]).toEqual([[6], [6, 7]]);
});

test("late drafts: outside of the tree the walk goes on with what followed in the group", () => {
  const told = [1, 2, 9, 5, 30, 31, 32];
  expect(drafted([4, 5], 0, [5, 6, 7, 20, 21])).toEqual([6, 7, 20]);
  const found = [[9, 5], [9], [77]].map((since) => drafted(since, 0, told));
  expect(found).toEqual([[30, 31, 32], [5, 30, 31], []]);
  // native/foretoken_vllm/tests/test_tables.py has the same number.
  expect(mixed(mixed(7, 123_456), 1)).toBe(534169118);
});

test("followers: the odds are the plugin's", () => {
  const numbersIn = (path: string, begin: string, end: string) => {
    const [, behind = ""] = readFileSync(path, "utf8").split(begin);
    return behind.split(end)[0]?.match(/\d+/g)?.map(Number);
  };
  const plugin = join(import.meta.dir, "../../../native/foretoken_vllm/src/foretoken_vllm");
  const own = numbersIn(
    join(import.meta.dir, "../../../src/tools/replay/followers.ts"),
    "const ODDS = [",
    "];",
  );
  expect(own).toHaveLength(36);
  expect(numbersIn(join(plugin, "table.py"), "ODDS = (", "\n)")).toEqual(own);
});
