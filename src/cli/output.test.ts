// The files that options name: nothing takes the place of what was there before it is whole.

import { afterAll, expect, test } from "bun:test";
import { spawnSync } from "node:child_process";
import {
  chmodSync,
  chownSync,
  existsSync,
  linkSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { join } from "node:path";
import { temporaryFolder } from "../../test/suite/temporary-folder.ts";
import { AppError } from "../core/base/errors.ts";
import { OutputFile, outputsOf, reportFiles } from "./output.ts";

const mounted: string[] = [];
afterAll(() => {
  for (const place of mounted.toReversed()) spawnSync("umount", ["-l", place]);
});
const root = temporaryFolder("output");

const read = (path: string) => readFileSync(path, "utf8");

function refusal(act: () => unknown): AppError {
  try {
    act();
  } catch (error) {
    if (error instanceof AppError) return error;
    throw error;
  }
  throw new Error("was not refused");
}

test("OutputFile: makes the folders, and takes its place when it is whole", () => {
  const path = join(root, "deep", "er", "responses.jsonl");
  const file = new OutputFile("--out", path);
  expect(readdirSync(join(root, "deep", "er"))).toEqual([]);
  file.append("one\n");
  file.append("two\n");
  expect(existsSync(path)).toBe(false);
  expect(read(file.left ?? "")).toBe("one\ntwo\n");
  file.finish();
  expect(file.left).toBeNull();
  expect(read(path)).toBe("one\ntwo\n");
  expect(readdirSync(join(root, "deep", "er"))).toEqual(["responses.jsonl"]);
});

test("OutputFile: what was there stays until then, with its mode, behind a link too", () => {
  const path = join(root, "old");
  const link = join(root, "link");
  writeFileSync(path, "old", { mode: 0o600 });
  symlinkSync(path, link);
  // Not what the umask allows new files.
  chmodSync(path, 0o622);
  const isRoot = process.getuid?.() === 0;
  if (isRoot) chownSync(path, 4321, 1234);
  const { uid, gid } = statSync(path);
  const file = new OutputFile("--out", link);
  file.append("new");
  expect(read(path)).toBe("old");
  file.finish();
  expect([read(path), statSync(path).mode & 0o777]).toEqual(["new", 0o622]);
  expect(statSync(path)).toMatchObject({ uid, gid });
  expect(read(link)).toBe("new");
});

test("OutputFile: a link to a file that is not there stays, and the file is made", () => {
  const path = join(root, "later", "target");
  const link = join(root, "dangling");
  symlinkSync("second", link);
  symlinkSync(join("later", "target"), join(root, "second"));
  const file = new OutputFile("--out", link);
  file.write("new");
  expect([read(path), readlinkSync(link), file.left]).toEqual(["new\n", "second", null]);
  const twice = outputsOf([]);
  symlinkSync("absent", join(root, "to-absent"));
  twice("--out", join(root, "to-absent"));
  const error = refusal(() => twice("--report", join(root, "absent")));
  expect(error.message).toContain("--out writes it too");
});

test("OutputFile: what an earlier process of the same number left is not written over", () => {
  const path = join(root, "again");
  const first = new OutputFile("--out", path);
  first.append("first");
  const second = new OutputFile("--out", path);
  second.append("second");
  second.finish();
  expect([read(first.left ?? ""), read(path)]).toEqual(["first", "second"]);
});

test("OutputFile: one that cannot be made is output_failed at once, with option, path and reason", () => {
  mkdirSync(join(root, "folder"));
  writeFileSync(join(root, "file"), "");
  for (const [path, reason] of [
    [join(root, "folder"), "EISDIR"],
    [join(root, "file", "responses.jsonl"), "E"],
  ] as const) {
    const error = refusal(() => new OutputFile("--out", path));
    expect(error.code).toBe("output_failed");
    expect(error.message).toStartWith(`--out ${path}: ${reason}`);
  }
});

test("OutputFile: a device is written in place, and has no page beside it", () => {
  const { report, page } = reportFiles(outputsOf([]), "/dev/null");
  report?.write("{}");
  expect([page, statSync("/dev/null").isCharacterDevice()]).toEqual([null, true]);
});

test("outputs: an input is none, by whatever name, and two of them are two files", () => {
  const path = join(root, "prompts.jsonl");
  writeFileSync(path, "prompts");
  symlinkSync(path, join(root, "prompts.link"));
  linkSync(path, join(root, "prompts.hard"));
  const open = outputsOf([path, join(root, "absent", "rollout.journal")]);
  const names = ["prompts.jsonl", "prompts.link", "prompts.hard", "absent/rollout.journal"];
  for (const name of names) {
    const error = refusal(() => open("--out", join(root, name)));
    expect([error.code, error.message]).toEqual(["usage", expect.stringContaining("reads it")]);
  }
  expect(read(path)).toBe("prompts");
  open("--out", join(root, "r.html"));
  const twice = refusal(() => reportFiles(open, join(root, "absent", "..", "r.json")));
  expect(twice.message).toContain("--out writes it too");
});

/** Mounts a file system of 64 KiB; says why where that is impossible. */
function mountSmall(directory: string): string | null {
  if (process.platform !== "linux") return "needs Linux";
  if (process.getuid?.() !== 0) return "needs root to mount a small file system";
  mkdirSync(directory);
  const mount = spawnSync("mount", ["-t", "tmpfs", "-o", "size=65536", "tmpfs", directory]);
  if (mount.status !== 0) return "mounting a tmpfs is not permitted here";
  mounted.push(directory);
  return null;
}

const small = join(root, "small");
const noMount = mountSmall(small);

test.skipIf(noMount !== null)(
  `OutputFile: on a full disk whole pieces stay in the part, and no torn file${noMount === null ? "" : ` (skipped: ${noMount})`}`,
  () => {
    const path = join(small, "responses.jsonl");
    writeFileSync(path, "old\n");
    const file = new OutputFile("--out", path);
    const piece = `${"x".repeat(20_000)}\n`;
    const fill = () => {
      for (;;) file.append(piece);
    };
    expect(refusal(fill).message).toContain("ENOSPC");
    const part = file.left ?? "";
    expect(read(part)).toBe(piece.repeat(Math.floor(statSync(part).size / piece.length)));
    expect(statSync(part).size).toBeGreaterThan(0);
    expect(read(path)).toBe("old\n");
    const report = new OutputFile("--report", join(small, "report.json"));
    expect(refusal(() => report.write("y".repeat(100_000))).message).toContain("ENOSPC");
    expect(readdirSync(small).filter((name) => name.startsWith("report"))).toEqual([]);
  },
);

test.skipIf(noMount !== null).each([
  ["a mounted file", "rw"],
  ["a mounted file in a folder that takes no other", "ro"],
])(`OutputFile: %s gets a copy${noMount === null ? "" : ` (skipped: ${noMount})`}`, (_, mode) => {
  const folder = join(root, `mounts-${mode}`);
  mountSmall(folder);
  const path = join(folder, "out.jsonl");
  const host = join(root, `host-${mode}`);
  writeFileSync(path, "");
  writeFileSync(host, "what was there is longer\n");
  for (const args of [
    ["--bind", host, path],
    ["-o", `remount,${mode}`, folder],
  ]) {
    expect(spawnSync("mount", args).status).toBe(0);
  }
  mounted.push(path);
  const file = new OutputFile("--out", path);
  file.append("one\n");
  const part = file.left ?? "";
  expect([read(part), read(host)]).toEqual(["one\n", "what was there is longer\n"]);
  file.append("two\n");
  file.finish();
  expect([read(host), existsSync(part), file.left]).toEqual(["one\ntwo\n", false, null]);
  expect(readdirSync(folder)).toEqual(["out.jsonl"]);
});

test("OutputFile: a process that is killed leaves the old file, and whole pieces beside it", () => {
  const path = join(root, "killed.jsonl");
  writeFileSync(path, "old\n");
  const script = `
    import { OutputFile } from ${JSON.stringify(join(import.meta.dir, "output.ts"))};
    const file = new OutputFile("--out", ${JSON.stringify(path)});
    file.append("one\\n");
    process.kill(process.pid, "SIGKILL");`;
  const child = spawnSync(process.execPath, ["-e", script]);
  expect(child.signal).toBe("SIGKILL");
  expect(read(path)).toBe("old\n");
  expect(read(`${path}.${child.pid}.part`)).toBe("one\n");
});
