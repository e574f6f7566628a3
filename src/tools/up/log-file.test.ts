import { afterEach, expect, test } from "bun:test";
import { closeSync, readFileSync, rmSync, writeSync } from "node:fs";
import { join } from "node:path";
import { temporaryFolder } from "../../../test/suite/temporary-folder.ts";
import { openLog, tailOf } from "./process-group.ts";

const folder = temporaryFolder("log");
const path = join(folder, "deep", "a.log");

afterEach(() => rmSync(join(folder, "deep"), { recursive: true, force: true }));

function write(text: string): void {
  const file = openLog(path);
  writeSync(file, text);
  closeSync(file);
}

test("openLog: begins empty and keeps the run before", () => {
  write("one\n");
  write("two\n");
  expect(readFileSync(path, "utf8")).toBe("two\n");
  expect(readFileSync(`${path}.old`, "utf8")).toBe("one\n");
});

test("tailOf: of a long log, only its end is read", async () => {
  write(`${"x".repeat(100_000)}\nlast\n`);
  expect(await tailOf(path, 1)).toEqual(["last"]);
  expect(await tailOf(join(folder, "absent.log"), 1)).toEqual([]);
});
