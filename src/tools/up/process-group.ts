// Runs a program and all its children as a process group that ends as a whole: on request, and when this process ends
// for any reason, including SIGKILL.
//
//   this process ──pipe──▶ guard (in the group): waits for the pipe's end, then kills the group
//        └─starts──▶ leader: sh, runs the program and waits for it

import { type ChildProcess, spawn } from "node:child_process";
import { existsSync, mkdirSync, openSync, renameSync } from "node:fs";
import { dirname } from "node:path";
import { assert } from "../../core/base/assert.ts";

/**
 * The leader outlives SIGTERM, so that its end means that the program has ended; the guard outlives it too. Signals go
 * to the whole group, so that the program receives them itself.
 */
const LEADER = `
exec 3<&0
trap : TERM INT
"$@" 3<&- </dev/null &
child=$!
(trap "" TERM INT; cat <&3 >/dev/null; kill -KILL 0) >/dev/null 2>&1 &
exec 3<&-
while :; do
  wait $child
  status=$?
  kill -0 $child 2>/dev/null || exit $status
done
`;

export interface GroupOptions {
  readonly command: readonly string[];
  readonly env: Readonly<Record<string, string | undefined>>;
  /** File descriptor that takes stdout and stderr. */
  readonly output: number;
}

export class ProcessGroup {
  /** Id of the group, which is the process id of its leader. */
  readonly pid: number;
  /** Resolves with how the program ended; never rejects. Other members of the group may still be alive. */
  readonly ended: Promise<string>;
  readonly #leader: ChildProcess;
  #hasEnded = false;

  /** Starts the program. @throws Error: there is no shell. */
  constructor({ command, env, output }: GroupOptions) {
    this.#leader = spawn("/bin/sh", ["-c", LEADER, "foretoken-guard", ...command], {
      detached: true,
      env: { ...env },
      stdio: ["pipe", output, output],
    });
    const { pid } = this.#leader;
    assert(pid !== undefined, "a process has a number");
    this.pid = pid;
    this.ended = new Promise((resolve) => {
      const end = (how: string) => {
        this.#hasEnded = true;
        resolve(how);
      };
      this.#leader.once("exit", (code, signal) => {
        end(signal === null ? `exit status ${code}` : `signal ${signal}`);
      });
      this.#leader.once("error", (error) => end(error.message));
    });
    // The guard may be killed before the pipe is closed here.
    this.#leader.stdin?.on("error", () => {});
  }

  get hasEnded(): boolean {
    return this.#hasEnded;
  }

  /** Sends SIGTERM; what remains after `graceMs` is killed. Resolves when the group is empty. */
  async stop(graceMs: number): Promise<void> {
    this.signal("SIGTERM");
    const timer = setTimeout(() => this.signal("SIGKILL"), graceMs);
    await this.ended;
    clearTimeout(timer);
    await this.clear();
  }

  /** Kills the remaining members of the group; resolves when the group is empty. */
  async clear(): Promise<void> {
    this.#leader.stdin?.destroy();
    for (let i = 0; i < EMPTY_CHECKS_MAX && this.signal("SIGKILL"); i += 1) {
      await Bun.sleep(EMPTY_CHECK_MS);
    }
  }

  /** Sends a signal; returns whether the group had a member to receive it. */
  signal(name: "SIGTERM" | "SIGKILL"): boolean {
    try {
      process.kill(-this.pid, name);
      return true;
    } catch {
      return false;
    }
  }
}

const EMPTY_CHECK_MS = 20;
/** Limit of checks, 2 s in all: a killed process ends at once, unless the kernel holds it. */
const EMPTY_CHECKS_MAX = 100;

/** Opens an empty log to append to; an existing one becomes `PATH.old`. Returns its descriptor. */
export function openLog(path: string): number {
  mkdirSync(dirname(path), { recursive: true });
  if (existsSync(path)) renameSync(path, `${path}.old`);
  return openSync(path, "a");
}

const TAIL_BYTES = 16_384;

/** The last non-empty lines, at most `linesMax`; none if the file cannot be read. */
export async function tailOf(path: string, linesMax: number): Promise<string[]> {
  const file = Bun.file(path);
  const from = Math.max(0, file.size - TAIL_BYTES);
  const lines = (
    await file
      .slice(from)
      .text()
      .catch(() => "")
  ).split("\n");
  return lines.filter((line) => line.trim() !== "").slice(-linesMax);
}
