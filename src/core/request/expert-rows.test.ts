import { expect, test } from "bun:test";
import { ExpertRows } from "./expert-rows.ts";

/** As numpy.save writes an array of bytes. */
function npy(rows: readonly (readonly number[])[], shape: string, type = "|u1"): Uint8Array {
  const text = `{'descr': '${type}', 'fortran_order': False, 'shape': (${rows.length}, ${shape}), }`;
  const padded = Math.ceil((11 + text.length) / 64) * 64 - 10;
  const head = Buffer.from(`\x93NUMPY\x01\x00..${text.padEnd(padded - 1)}\n`, "latin1");
  head.writeUInt16LE(padded, 8);
  return new Uint8Array(Buffer.concat([head, Buffer.from(rows.flat())]));
}

const row = (position: number) => [position, position + 1, position + 2, position + 3];
const rowsFrom = (from: number, to: number) =>
  Array.from({ length: to - from }, (_, i) => row(from + i));

test("experts: chunks in any overlap become the file that one chunk would have brought", () => {
  const whole = npy(rowsFrom(3, 40), "2, 2");
  for (const cuts of [[40], [10, 40], [4, 5, 6, 40], [3, 17, 40]]) {
    const experts = new ExpertRows(3);
    let from = 3;
    for (const to of cuts) {
      // An attempt that failed has its rows reported once more.
      const again = Math.max(3, from - 2);
      expect(experts.append(again, npy(rowsFrom(again, to), "2, 2"))).toBeNull();
      expect(experts.end).toBe(Math.max(from, to));
      from = experts.end;
    }
    expect(experts.npy()).toEqual(whole);
    expect(experts.bytes).toBe(37 * 4);
  }
});

test("experts: a gap, another shape, another type and damaged files are refused, and change nothing", () => {
  const experts = new ExpertRows(0);
  expect(experts.npy()).toBeNull();
  expect(experts.append(0, npy(rowsFrom(0, 5), "2, 2"))).toBeNull();
  const before = experts.npy();
  expect(experts.append(6, npy(rowsFrom(6, 8), "2, 2"))).toContain("position 6, but 5");
  expect(experts.append(5, npy(rowsFrom(5, 8), "4, 1"))).toContain(
    "(n, 4, 1), not |u1 and (n, 2, 2)",
  );
  expect(experts.append(5, npy(rowsFrom(5, 9), "1, 2", "<u2"))).toContain("<u2");
  const good = npy(rowsFrom(5, 8), "2, 2");
  for (const bad of [
    good.subarray(0, 5),
    good.subarray(0, -1),
    good.subarray(1),
    new Uint8Array(),
  ]) {
    expect(experts.append(5, bad)).toContain("numpy");
  }
  expect(experts.npy()).toEqual(before);
});
