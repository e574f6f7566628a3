// The history's file: what was appended is read again, whatever byte it was cut at, and it stays within its bound.

import { expect, test } from "bun:test";
import { readFileSync, statSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { temporaryFolder } from "../../../test/suite/temporary-folder.ts";
import { historyPlace } from "../../host/journal-file.ts";
import { encodeRecord, HistoryFile, type HistoryRecord } from "./history-file.ts";

const folder = temporaryFolder("history");

const recordOf = (key: number, tokens: number[]): HistoryRecord => ({
  key,
  epoch: 7,
  length: tokens.length + 1,
  tokens: Int32Array.from(tokens),
});
const RECORDS = [recordOf(1, [5, 6, 7]), recordOf(2 ** 52 + 1, []), recordOf(3, [0, 0x7fffffff])];

function opened(path: string, options: { bytesMax?: number; kept?: HistoryRecord[] } = {}) {
  const read: HistoryRecord[] = [];
  const { bytesMax = 1 << 20, kept = [] } = options;
  const failed = (error: unknown) => {
    throw error;
  };
  const take = (record: HistoryRecord) => read.push(record);
  const place = historyPlace(path, failed);
  return { file: new HistoryFile({ place, take, kept: () => kept, bytesMax }), read };
}

test("file: cut at any byte, it has the records before, and goes on behind them", async () => {
  const path = join(folder, "cut");
  const bytes = Buffer.concat(RECORDS.map(encodeRecord));
  for (let length = 0; length < bytes.length; length += 1) {
    writeFileSync(path, bytes.subarray(0, length));
    const cut = opened(path);
    let end = 0;
    const whole = RECORDS.filter((record) => {
      end += encodeRecord(record).length;
      return end <= length;
    });
    expect(cut.read).toEqual(whole);
    cut.file.append(recordOf(9, [1]));
    await cut.file.close();
    const again = opened(path);
    expect(again.read).toEqual([...whole, recordOf(9, [1])]);
    await again.file.close();
  }
});

test("file: any byte that is damaged ends it before its record", async () => {
  const path = join(folder, "damaged");
  const bytes = Buffer.concat(RECORDS.map(encodeRecord));
  // Without its first four bytes it is another file.
  for (let at = 4; at < bytes.length; at += 1) {
    const damaged = Buffer.from(bytes);
    damaged[at] = (damaged[at] ?? 0) ^ 0x55;
    writeFileSync(path, damaged);
    const { file, read } = opened(path);
    expect(RECORDS.slice(0, read.length)).toEqual(read);
    expect(read.length).toBeLessThan(RECORDS.length);
    await file.close();
  }
});

test("file: another file is not touched, nor is a place that cannot be written", async () => {
  const path = join(folder, "other");
  writeFileSync(path, "a file of somebody else");
  expect(() => opened(path)).toThrow(/the history file .*other is no history/);
  expect(readFileSync(path, "utf8")).toBe("a file of somebody else");
  expect(() => opened(join(folder, "none", "file"))).toThrow(/the history file .* cannot be used/);
});

test("file: beyond its bound it is written anew with what is kept", async () => {
  const path = join(folder, "bound");
  const kept = [recordOf(1, [1, 2, 3])];
  const { file } = opened(path, { bytesMax: 2_000, kept });
  for (let i = 0; i < 500; i += 1) {
    file.append(recordOf(i, [i, i, i, i]));
    if (i % 7 === 0) await Bun.sleep(0);
  }
  await file.close();
  expect(statSync(path).size).toBeLessThan(4_000);
  const again = opened(path);
  expect(again.read[0]).toEqual(kept[0] as HistoryRecord);
  await again.file.close();
});
