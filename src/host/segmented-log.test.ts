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

test("log: at its bound the oldest files go, and the newest frames stay", async () => {
  const { path, log } = opened("bound");
  for (let i = 0; i < 200; i += 1) {
    log.append(frame(i % 256));
    if (i % 7 === 0) await Bun.sleep(0);
  }
  await log.close();
  const again = read(opened("bound").log);
  expect(again.length).toBeLessThanOrEqual(8_000);
  expect(again.length).toBeGreaterThan(5_000);
  expect(again.at(-1)).toBe(199);
  expect(readdirSync(path).length).toBeLessThanOrEqual(8);
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
