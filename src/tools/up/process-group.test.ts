// Real processes: a shell that starts others, as vLLM's API server starts its engine.

import { expect, test } from "bun:test";
import { closeSync, openSync, readFileSync, writeSync } from "node:fs";
import { join } from "node:path";
import { temporaryFolder } from "../../../test/suite/temporary-folder.ts";
import { openLog, ProcessGroup, tailOf } from "./process-group.ts";

/** Starts a child of its own; its answer to signals is set before the child can be seen. */
const WITH_CHILD = 'trap "exit 3" TERM; sleep 1000 & wait';
const STUBBORN = 'trap "" TERM; sleep 1000 & while :; do wait; done';

function start(script: string): ProcessGroup {
  const output = openSync("/dev/null", "w");
  const command = ["/bin/sh", "-c", script];
  const group = new ProcessGroup({ command, env: process.env, output });
  closeSync(output);
  return group;
}

/** Members that have not ended. */
function membersOf(group: number): number {
  const { stdout } = Bun.spawnSync(["ps", "-eo", "pgid=,stat="]);
  const lines = stdout.toString().split("\n");
  return lines.filter((line) => {
    const [pgid, stat = ""] = line.trim().split(/\s+/);
    return Number(pgid) === group && !stat.startsWith("Z");
  }).length;
}

async function until(holds: () => boolean): Promise<void> {
  while (!holds()) await new Promise((resolve) => setImmediate(resolve));
}

/** Leader, program, its child, guard and what the guard waits with. */
const WHOLE = 4;

test("stop: ends the program and what it has started, and tells how", async () => {
  const group = start(WITH_CHILD);
  await until(() => membersOf(group.pid) > WHOLE);
  await group.stop(10_000);
  expect(await group.ended).toBe("exit status 3");
  expect(membersOf(group.pid)).toBe(0);
});

test("stop: a program that does not listen is killed", async () => {
  const group = start(STUBBORN);
  await until(() => membersOf(group.pid) > WHOLE);
  await group.stop(1);
  expect(membersOf(group.pid)).toBe(0);
});

test("ended: a program that ends by itself is reported, and clear ends its children", async () => {
  const group = start("sleep 1000 & exit 7");
  expect(await group.ended).toBe("exit status 7");
  await group.clear();
  expect(membersOf(group.pid)).toBe(0);
});

test("kill -9 of the program that started it: no process is left", async () => {
  const module = JSON.stringify(join(import.meta.dir, "process-group.ts"));
  const script = `
    import { openSync } from "node:fs";
    const { ProcessGroup } = await import(${module});
    const command = ["/bin/sh", "-c", ${JSON.stringify(STUBBORN)}];
    const group = new ProcessGroup({ command, env: process.env, output: openSync("/dev/null", "w") });
    console.log(group.pid);
    setInterval(() => {}, 1000);`;
  const parent = Bun.spawn([process.execPath, "-e", script], { stdout: "pipe" });
  const reader = parent.stdout.getReader();
  const { value } = await reader.read();
  const group = Number(new TextDecoder().decode(value));
  expect(group).toBeGreaterThan(1);
  await until(() => membersOf(group) > WHOLE);
  parent.kill("SIGKILL");
  await parent.exited;
  await until(() => membersOf(group) === 0);
});

test("log: begins empty and keeps the run before; only the end of a long one is read", async () => {
  const path = join(temporaryFolder("log"), "deep", "a.log");
  const write = (text: string) => {
    const file = openLog(path);
    writeSync(file, text);
    closeSync(file);
  };
  expect(await tailOf(path, 1)).toEqual([]);
  write("one\n");
  write(`${"x".repeat(100_000)}\nlast\n`);
  expect(readFileSync(path, "utf8")).not.toContain("one");
  expect(readFileSync(`${path}.old`, "utf8")).toBe("one\n");
  expect(await tailOf(path, 1)).toEqual(["last"]);
});
