// The program of docs/STREAM.md, as a reader would copy it.

import { expect } from "bun:test";
import { join } from "node:path";
import { ROOT } from "../e2e/tool.ts";

/** The program, with this host in place of its own. */
export async function streamExample(host: string): Promise<string> {
  const text = await Bun.file(join(ROOT, "docs", "STREAM.md")).text();
  const [, example = ""] = /```js\n(.*?)```/s.exec(text) ?? [];
  return example.replaceAll("127.0.0.1:8000", host);
}

/** The program has printed the beginnings and ends of these two responses, and of no other. */
export function expectFollowed(printed: string, requests: readonly [string, string]): void {
  const lines = printed.trim().split("\n");
  const numbersOf = (pattern: RegExp) =>
    lines.filter((line) => pattern.test(line)).map((line) => line.split(" ")[0]);
  expect(numbersOf(/^\d+ (stop|length)$/).toSorted()).toEqual([...requests]);
  expect(numbersOf(/^\d+ 0 \[/).toSorted()).toEqual([...requests]);
}
