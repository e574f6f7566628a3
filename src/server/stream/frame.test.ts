// The columns of a frame keep what is pushed while they grow.

import { expect, test } from "bun:test";
import { Column } from "./frame.ts";

test("column: every value is kept, those at which its memory grows too", () => {
  const column = new Column();
  const values = Array.from({ length: 1_000 }, (_, i) => i + 1);
  for (const value of values) column.push(value);
  expect([...column.view()]).toEqual(values);
  column.clear();
  column.append(Int32Array.of(7));
  column.push(8);
  expect([...column.view()]).toEqual([7, 8]);
});
