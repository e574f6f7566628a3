// Records with right checksums that no run writes: they are refused by name, and never read as something else.

import { expect, test } from "bun:test";
import { readJournal } from "./read.ts";
import { RecordWriter } from "./records.ts";

const HEADER = { format: 1 };

function journalOf(...records: readonly object[]): Uint8Array {
  const writer = new RecordWriter();
  for (const record of [HEADER, ...records]) writer.json(record);
  return writer.take().slice();
}

test.each<[object, string]>([
  [{}, "a record is of no known type"],
  [{ type: "end", stream: 0 }, "a record is of no known type"],
  [{ type: "finish", reason: "stop" }, "the stream of a record is no whole number"],
  [{ type: "epoch", epoch: -1, version: "0" }, "the epoch of a record is no whole number"],
  [{ type: "chunk", stream: 0, worker: 0, epoch: 0, weights: null }, "the offset of a record"],
])("journal: %p is damage that is named", (record, problem) => {
  expect(() => readJournal(journalOf(record), "file")).toThrow(problem);
});

test.each([
  ["a text", "my notes"],
  ["another release's magic number", "FTJM\u0001\u0000\u0000\u0000 and what follows"],
])("journal: %s is refused, and not taken for an empty one", (_, bytes) => {
  expect(() => readJournal(new TextEncoder().encode(bytes), "file")).toThrow("is no journal");
});

test.each([0, 1, 3, 4, 11, 20])(
  "journal: the first %d bytes of its first write are cut off",
  (count) => {
    expect(readJournal(journalOf().subarray(0, count), "file")).toBeNull();
    expect(readJournal(new Uint8Array(count), "file")).toBeNull();
  },
);

test("journal: a chunk behind the end of its response is damage that is named", () => {
  const chunk = { type: "chunk", stream: 3, worker: 0, epoch: 0, weights: null, offset: 7 };
  expect(() => readJournal(journalOf(chunk), "file")).toThrow(
    "file: chunk 0 of response 3 begins at 7, behind the end of its 0 tokens",
  );
});
