// The log on a real disk: what was appended is read again, whole files go at the bound, and a fault takes all of it.

import { expect, test } from "bun:test";
import { mkdirSync, readdirSync, rmSync } from "node:fs";
import { join } from "node:path";
import { temporaryFolder } from "../../test/suite/temporary-folder.ts";
import { SegmentedLog } from "./segmented-log.ts";

const folder = temporaryFolder("segmented-log");

function opened(name: string, failed: (error: unknown) => void = () => {}) {
  const path = join(folder, name);
  mkdirSync(path, { recursive: true });
  return { path, log: new SegmentedLog({ folder: path, name: "log", bytesMax: 8_000, failed }) };
}

const frame = (value: number) => new Uint8Array(100).fill(value);
const read = (log: SegmentedLog) => [...log.read()].flatMap((bytes) => [...bytes]);

test("log: each process begins a file; all that earlier ones wrote is read, in order", async () => {
  for (let process = 1; process <= 3; process += 1) {
    const { log } = opened("order");
    expect(read(log)).toHaveLength((process - 1) * 200);
    log.append(frame(2 * process));
    log.append(frame(2 * process + 1));
    await log.close();
  }
  const values = new Set(read(opened("order").log));
  expect([...values]).toEqual([2, 3, 4, 5, 6, 7]);
});

test.each([
  ["written on the way", 7],
  // Files go before they are open.
  ["of one turn", 1_000],
])("log: at its bound the oldest files go, and the newest frames stay: %s", async (name, turn) => {
  const { path, log } = opened(name);
  for (let i = 0; i < 200; i += 1) {
    log.append(frame(i % 256));
    if (i % turn === turn - 1) await Bun.sleep(0);
  }
  await log.close();
  const again = read(opened(name).log);
  expect(again.length).toBeLessThanOrEqual(8_000);
  expect(again.length).toBeGreaterThan(5_000);
  expect(again.at(-1)).toBe(199);
  expect(readdirSync(path).length).toBeLessThanOrEqual(8);
});

test("log: what comes after its end is not written behind it", async () => {
  const { log } = opened("end");
  log.append(frame(1));
  await log.close();
  log.append(frame(2));
  await log.close();
  expect(new Set(read(opened("end").log))).toEqual(new Set([1]));
});

test("log: one that cannot be deleted either says why it ended", async () => {
  const failures: unknown[] = [];
  const { path, log } = opened("stuck", (error) => failures.push(error));
  // Its first file's place is taken.
  mkdirSync(join(path, "log-1"));
  log.append(frame(1));
  await log.close();
  expect(failures.join()).toContain("EISDIR");
});

test("log: one that cannot be written is deleted, and says so once", async () => {
  const failures: unknown[] = [];
  const { path, log } = opened("fault", (error) => failures.push(error));
  log.append(frame(1));
  await log.close();
  const broken = opened("fault", (error) => failures.push(error));
  rmSync(path, { recursive: true });
  broken.log.append(frame(2));
  broken.log.append(frame(3));
  await broken.log.close();
  expect(failures).toHaveLength(1);
  mkdirSync(path);
  expect(read(opened("fault").log)).toEqual([]);
});
