import { expect, test } from "bun:test";
import { chmodSync, existsSync, mkdirSync, rmSync, statSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { temporaryFolder } from "../../test/suite/temporary-folder.ts";
import { JournalLog } from "../core/journal/log.ts";
import { JournalFile, openRunFiles, readJournalFile, takeJournalFolder } from "./journal-file.ts";

const folder = temporaryFolder("journal");

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
  const { size } = statSync(path);
  expect(first?.bytes).toBe(size);
  await file.close();
  const { file: second } = fileOn(path, new JournalLog(), size);
  await second.close();
  expect(readJournalFile(path)?.bytes).toBe(size);
});

test.skipIf(process.platform !== "linux").each([
  ["/dev/full", "ENOSPC"],
  [join(folder, "missing", "a"), "ENOENT"],
])(
  "journal file: that %s cannot be written is told once, and nothing waits for it",
  async (path, code) => {
    const log = new JournalLog();
    log.note({ format: 1 });
    const { file, failures } = fileOn(path, log);
    await file.settled();
    file.touch();
    await file.settled();
    expect(failures.map(String)).toEqual([expect.stringContaining(code)]);
    await file.close();
  },
);

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

test("journal folder: a file of another program is left as it is, and named", () => {
  const other = join(folder, "other");
  mkdirSync(other);
  writeFileSync(join(other, "notes.journal"), "my notes");
  expect(() => openRunFiles(other, () => {})).toThrow(/notes\.journal: is no journal/);
  expect(existsSync(join(other, "notes.journal"))).toBe(true);
  expect(() => openRunFiles(other, () => {})).toThrow(/is no journal/);
});

test("journal folder: runs of an earlier process are handed out once, and what is empty is deleted", async () => {
  const runs = join(folder, "runs");
  const first = openRunFiles(runs, () => {});
  const log = new JournalLog();
  log.note({ format: 1 });
  await first.open(log, null).close();
  writeFileSync(join(runs, "empty.journal"), "");
  await first.release();
  const second = openRunFiles(runs, () => {});
  expect(existsSync(join(runs, "empty.journal"))).toBe(false);
  const [run] = second.takeSaved();
  expect(run?.header).toEqual({ format: 1 });
  expect(second.takeSaved()).toEqual([]);
  // Its file is known still: it goes on in the same one.
  await second.open(new JournalLog(), run ?? null).remove();
  await second.release();
  expect(openRunFiles(runs, () => {}).takeSaved()).toEqual([]);
});

test("journal folder: of processes that take it at the same time one gets it, and the next one when that is killed", async () => {
  const shared = join(folder, "shared");
  mkdirSync(shared);
  const module = join(import.meta.dir, "journal-file.ts");
  const script = `
    import { takeJournalFolder } from ${JSON.stringify(module)};
    for await (const _ of console) break;
    try { takeJournalFolder(${JSON.stringify(shared)}); console.log("taken"); }
    catch ({ message }) { console.log(message); }
    for await (const _ of console) break;`;
  const child = () =>
    Bun.spawn([process.execPath, "-e", script], { stdin: "pipe", stdout: "pipe" });
  const children = Array.from({ length: 4 }, child);
  for (const { stdin } of children) {
    stdin.write("\n");
    await stdin.flush();
  }
  const said = await Promise.all(
    children.map(async ({ stdout }) => {
      const { value } = await stdout.getReader().read();
      return new TextDecoder().decode(value);
    }),
  );
  expect(said.filter((line) => line === "taken\n").length).toBe(1);
  expect(said.filter((line) => /another process ?\d* uses it/.test(line)).length).toBe(3);
  for (const one of children) one.kill("SIGKILL");
  await Promise.all(children.map(({ exited }) => exited));
  takeJournalFolder(shared)();
});

const isRoot = process.getuid?.() === 0 && Bun.which("setpriv") !== null;

test.skipIf(!isRoot)(
  "journal: a folder that its user may not write ends with an error that names it (skipped: needs root and setpriv)",
  () => {
    const there = join(folder, "of-root");
    mkdirSync(there);
    for (const path of [folder, there]) chmodSync(path, 0o755);
    const paths = [there, join(there, "absent")];
    const script = `import { openRunFiles } from ${JSON.stringify(join(import.meta.dir, "journal-file.ts"))};
      for (const path of ${JSON.stringify(paths)}) {
        try { openRunFiles(path, () => {}); } catch ({ code, message }) { console.log(code, message); }
      }`;
    const nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
    const { stdout } = Bun.spawnSync([...nobody, process.execPath, "-e", script], {
      stderr: "pipe",
    });
    const lines = stdout.toString().trimEnd().split("\n");
    for (const [i, path] of paths.entries()) {
      expect(lines[i]).toStartWith(`output_failed --journal ${path}: `);
    }
  },
);

test.each(["a.journal", "weights", "lock", "lock.sqlite"])(
  "journal folder: a FIFO or a folder as %s is refused by its name, others stand there",
  (name) => {
    const at = join(folder, `held-${name}`);
    mkdirSync(join(at, name), { recursive: true });
    mkdirSync(join(at, "notes"));
    const refused = `--journal ${at}: ${name} in it is no regular file`;
    expect(() => takeJournalFolder(at)).toThrow(refused);
    rmSync(join(at, name), { recursive: true });
    expect(Bun.spawnSync(["mkfifo", join(at, name)]).exitCode).toBe(0);
    expect(() => takeJournalFolder(at)).toThrow(refused);
    rmSync(join(at, name));
    takeJournalFolder(at)();
  },
);
