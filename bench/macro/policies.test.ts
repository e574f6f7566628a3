import { expect, test } from "bun:test";
import { cellOf, tableOf } from "./policies.ts";

const round = (wall_s: number, tail_s: number) => ({ wall_s, tail_s, cpu_s: wall_s * 2 });

test("cell: the better of group and divided in each round, over seer", () => {
  const cell = cellOf("one", {
    group: [round(10, 4), round(12, 2)],
    divided: [round(8, 5), round(13, 3)],
    seer: [round(8, 2), round(6, 4)],
  });
  expect(cell).toMatchObject({ wall: 1.5, tail: 1.25, cpu: 1.5 });
  const lost = cellOf("two", { group: [round(5, 1)], divided: [round(4, 1)], seer: [round(5, 1)] });
  expect(lost.wall).toBe(0.8);
  const lines = tableOf([cell, lost]).split("\n");
  expect(lines.filter((line) => line.includes("loses"))).toHaveLength(1);
});
