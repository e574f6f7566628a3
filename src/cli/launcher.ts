// The package runner that a process was started by (`npx foretoken serve`, a script of package.json): a signal to
// it ends the runner and its shell, and not what they started, which would keep its port. So a
// serving command watches them and stops when they have ended. It continues if it was started in the background or by
// another program, unless that program names itself (`--parent`).

import { readFileSync } from "node:fs";

/** One process, as /proc has it. */
export interface ProcessEntry {
  readonly pid: number;
  readonly parent: number;
  readonly session: number;
  /** Ticks since the boot: distinguishes a process from a later one with the same number. */
  readonly started: string;
  readonly command: readonly string[];
  /** Signals that it ignores, as bits. */
  readonly ignored: bigint;
}

export type ReadProcess = (pid: number) => ProcessEntry | null;

/** SIGHUP by `nohup`, SIGINT by `&` in a shell without job control. */
const BACKGROUND_SIGNALS = 0b11n;
const RUNNER = /(?:^|\/)(?:npm|npx|yarn|pnpm|pnpx|bunx)(?:[-.]cli)?(?:\.[cm]?js)?(?:$|\s)/;
const BUN_RUN = /(?:^|\/)bun(?:\.exe)? (?:run|x)(?:$|\s)/;
const SHELL = /(?:^|\/|^-)(?:sh|bash|dash|ash|zsh|ksh)$/;
/** Shells between a runner and what it runs: its own, a script, a script of that. */
const SHELLS_MAX = 4;
const WATCH_MS = 200;

/** The runner that `self` was started by, in the foreground; null: there is none. */
export function launcherOf(self: ProcessEntry, read: ReadProcess): ProcessEntry | null {
  let pid = self.parent;
  for (let shells = 0; shells <= SHELLS_MAX && pid > 1; shells += 1) {
    const entry = read(pid);
    // A session of its own is what a daemon makes for itself.
    if (entry === null || entry.session !== self.session) return null;
    const isBackground = (self.ignored & ~entry.ignored & BACKGROUND_SIGNALS) !== 0n;
    if (isRunner(entry)) return isBackground ? null : entry;
    if (!SHELL.test(entry.command[0] ?? "")) return null;
    pid = entry.parent;
  }
  return null;
}

/** npm's processes are titled by what they run, `npm exec foretoken`; others show an interpreter and its script. */
function isRunner({ command }: ProcessEntry): boolean {
  const [program = "", script = ""] = command;
  return RUNNER.test(program) || RUNNER.test(script) || BUN_RUN.test(`${program} ${script}`);
}

/**
 * Calls `act` once when the package runner that started this process, or its shell, is gone. Does nothing
 * where there is none, or no /proc to see it in.
 */
export function whenLauncherEnds(act: () => void): void {
  const self = readProcess(process.pid);
  const launcher = self === null ? null : launcherOf(self, readProcess);
  if (self === null || launcher === null) return;
  whenFalse(() => isThere(launcher) && process.ppid === self.parent, act);
}

/** Calls `act` once when process `pid` has ended, also if it has already. */
export function whenProcessEnds(pid: number, act: () => void): void {
  const watched = readProcess(pid);
  whenFalse(() => watched !== null && isThere(watched), act);
}

function isThere({ pid, started }: ProcessEntry): boolean {
  return readProcess(pid)?.started === started;
}

function whenFalse(check: () => boolean, act: () => void): void {
  const timer = setInterval(() => {
    if (check()) return;
    clearInterval(timer);
    act();
  }, WATCH_MS);
  timer.unref();
}

function readProcess(pid: number): ProcessEntry | null {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, "latin1");
    // The name, in parentheses, may hold anything.
    const [state, parent, , session, ...rest] = stat.slice(stat.lastIndexOf(")") + 2).split(" ");
    // Ended, and not waited for.
    if (state === "Z" || state === "X") return null;
    const status = readFileSync(`/proc/${pid}/status`, "latin1");
    return {
      pid,
      parent: Number(parent),
      session: Number(session),
      started: rest[15] ?? "",
      command: readFileSync(`/proc/${pid}/cmdline`, "utf8").split("\0"),
      ignored: BigInt(`0x${/^SigIgn:\s*([0-9a-f]+)$/m.exec(status)?.[1] ?? "0"}`),
    };
  } catch {
    return null;
  }
}
