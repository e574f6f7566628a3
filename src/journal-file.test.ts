import { afterAll, expect, test } from "bun:test";
import { existsSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { JournalLog } from "./journal/log.ts";
import { JournalFile, readJournalFile } from "./journal-file.ts";

const folder = mkdtempSync(join(tmpdir(), "foretoken-journal-"));
afterAll(() => rmSync(folder, { recursive: true, force: true }));

function fileOn(path: string, log: JournalLog, keptBytes = 0) {
  const failures: unknown[] = [];
  const file = new JournalFile({ path, log, keptBytes, failed: (error) => failures.push(error) });
  return { file, failures };
}

test("journal file: what was settled is there, and a later process appends to it", async () => {
  const path = join(folder, "a");
  const log = new JournalLog();
  log.note({ format: 1 });
  const { file } = fileOn(path, log);
  await file.settled();
  const first = readJournalFile(path);
  expect(first?.header).toEqual({ format: 1 });
  expect(first?.bytes).toBe(file.bytes);
  await file.close();
  const { file: second } = fileOn(path, new JournalLog(), file.bytes);
  await second.close();
  expect(readJournalFile(path)?.bytes).toBe(file.bytes);
});

test.skipIf(process.platform !== "linux")(
  "journal file: a full disk is told once, and nothing waits for it",
  async () => {
    const log = new JournalLog();
    log.note({ format: 1 });
    const { file, failures } = fileOn("/dev/full", log);
    await file.settled();
    file.touch();
    await file.settled();
    expect(failures.map(String)).toEqual([expect.stringContaining("ENOSPC")]);
    expect(log.hasNews).toBe(false);
    await file.close();
  },
);

test("journal file: a folder that cannot be written to is reported, and nothing waits for it", async () => {
  const log = new JournalLog();
  log.note({ format: 1 });
  const { file, failures } = fileOn(join(folder, "missing", "a"), log);
  await file.settled();
  expect(failures).toHaveLength(1);
  await file.close();
  expect(readJournalFile(join(folder, "missing", "a"))).toBeNull();
});

test("journal file: one that is removed before it is open is gone, and no failure", async () => {
  for (let round = 0; round < 20; round += 1) {
    const path = join(folder, `removed-${round}`);
    const log = new JournalLog();
    log.note({ format: 1 });
    const { file, failures } = fileOn(path, log);
    file.touch();
    await file.remove();
    expect(existsSync(path)).toBe(false);
    // As a journal of an earlier process that is not wanted any more.
    writeFileSync(path, "saved");
    const { file: saved, failures: more } = fileOn(path, new JournalLog(), 5);
    await saved.remove();
    expect(existsSync(path)).toBe(false);
    expect([...failures, ...more]).toEqual([]);
  }
});

test("journal file: one that cannot be deleted is reported, and nothing throws", async () => {
  const path = join(folder, "a-folder");
  mkdirSync(path);
  const { file, failures } = fileOn(path, new JournalLog());
  await file.remove();
  expect(failures.length).toBeGreaterThan(0);
});
