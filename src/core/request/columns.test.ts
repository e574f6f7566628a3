import { expect, test } from "bun:test";
import { OutputColumns, TokenColumn } from "./columns.ts";

const count = (from: number, length: number) => Int32Array.from({ length }, (_, i) => from + i);

test("view: a view never changes, however the column grows or restarts", () => {
  const columns = new OutputColumns(10_000, 0);
  const followed = columns.column;
  const views: Int32Array[] = [];
  for (let at = 0; at < 3000; at += 30) {
    columns.appendFrom(count(at, 30), new Float32Array(30), null, 0);
    views.push(columns.tokens(at));
  }
  columns.clear();
  columns.appendFrom(count(7_000, 50), new Float32Array(50), null, 0);
  for (const [i, view] of views.entries()) expect(view).toEqual(count(30 * i, 30));
  expect(followed.view(0)).toEqual(count(0, 3000));
  expect(columns.tokens(0)).toEqual(count(7_000, 50));
});

test("append and push: the same columns, at every cut", () => {
  const rows = Array.from({ length: 200 }, (_, i) => [i, -i, i + 1, -i - 1]);
  const logprobs = Float32Array.from({ length: 200 }, (_, i) => -i);
  const top = {
    count: 2,
    tokens: Int32Array.from(rows.flatMap((row) => [row[0] ?? 0, row[2] ?? 0])),
    logprobs: Float32Array.from(rows.flatMap((row) => [row[1] ?? 0, row[3] ?? 0])),
  };
  const pushed = new OutputColumns(200, 2);
  for (const [i, row] of rows.entries()) pushed.push(i, -i, row);
  for (const from of [0, 1, 63, 64, 150, 199, 200]) {
    const columns = new OutputColumns(200, 2);
    for (const [i, row] of rows.slice(0, from).entries()) columns.push(i, -i, row);
    columns.appendFrom(count(0, 200), logprobs, top, from);
    expect(columns.tokens(0)).toEqual(pushed.tokens(0));
    expect(columns.logprobs(0)).toEqual(pushed.logprobs(0));
    expect(columns.topLogprobs(0)).toEqual(pushed.topLogprobs(0));
  }
});

test("growthBytes: is what the column takes then, and never more than its longest", () => {
  for (const max of [10, 100, 1000, Number.POSITIVE_INFINITY]) {
    const column = new TokenColumn(max);
    for (let length = 1; length <= Math.min(max, 1000); length += 7) {
      const before = column.bytes;
      const growth = column.growthBytes(length);
      column.append(count(column.length, length - column.length), 0);
      expect(column.bytes - before).toBe(growth);
      expect(column.bytes).toBeLessThanOrEqual(4 * max);
    }
  }
});
