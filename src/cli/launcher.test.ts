// By whom a process was started, told from what /proc says of those above it.

import { expect, test } from "bun:test";
import { launcherOf, type ProcessEntry } from "./launcher.ts";

const SELF = 100;

/** A process and those above it, nearest first; each named by what it runs. */
function launcherIn(
  above: readonly { command: string[]; session?: number; ignored?: bigint }[],
  own: { session?: number; ignored?: bigint } = {},
): string | null {
  const entries = [{ command: ["bun", "src/main.ts", "serve"], ...own }, ...above].map(
    ({ command, session = 7, ignored = 0n }, i): ProcessEntry => ({
      pid: SELF - i,
      parent: SELF - i - 1,
      session,
      started: "1",
      command,
      ignored,
    }),
  );
  const [self, ...rest] = entries;
  if (self === undefined) throw new Error("a process has an entry");
  const launcher = launcherOf(self, (pid) => rest.find((one) => one.pid === pid) ?? null);
  return launcher?.command.join(" ") ?? null;
}

const SHELL = { command: ["sh", "-c", "foretoken serve"] };
const NPX = { command: ["npm exec foretoken serve   "] };

test("launcher: npx and npm start are found, through their shell and scripts or without", () => {
  expect(launcherIn([SHELL, NPX])).toContain("npm exec");
  expect(launcherIn([NPX])).toContain("npm exec");
  const script = { command: ["/bin/bash", "./run.sh"] };
  expect(launcherIn([script, SHELL, { command: ["npm start"] }])).toBe("npm start");
  expect(
    launcherIn([SHELL, { command: ["node", "/usr/lib/npm/bin/npx-cli.js", "x"] }]),
  ).not.toBeNull();
  expect(
    launcherIn([SHELL, { command: ["node", "/opt/pnpm/bin/pnpm.cjs", "start"] }]),
  ).not.toBeNull();
  expect(launcherIn([SHELL, { command: ["/usr/bin/bun", "run", "start"] }])).not.toBeNull();
});

test("launcher: a process started otherwise has no launcher", () => {
  expect(launcherIn([{ command: ["-bash"] }])).toBeNull();
  expect(launcherIn([{ command: ["python3", "train.py"] }, SHELL, NPX])).toBeNull();
  expect(launcherIn([{ command: ["bun", "test"] }, SHELL, NPX])).toBeNull();
  expect(launcherIn([])).toBeNull();
});

test("launcher: what was sent to the background, or made a session of its own, continues", () => {
  expect(launcherIn([SHELL, NPX], { ignored: 0b1n })).toBeNull();
  expect(launcherIn([SHELL, NPX], { ignored: 0b110n })).toBeNull();
  expect(launcherIn([SHELL, NPX], { session: 100 })).toBeNull();
  // The runner itself is in the background: what it runs belongs to it all the same.
  expect(launcherIn([SHELL, { ...NPX, ignored: 0b1n }], { ignored: 0b1n })).not.toBeNull();
});
