// Cores of two servers on one machine, as if each had a machine of its own: each server has a core, everything else
// (sidecars, the pool's master, the bench) the cores that are left, or all where none is left.

import { cpus } from "node:os";
import type { Fleet } from "../../../test/vllm/fleet.ts";
import { livingIn } from "../../../test/vllm/fleet.ts";

const CORES = cpus().length;

function bind(pid: number, cores: string): void {
  // -a: all threads of the process; those that it starts later inherit.
  Bun.spawnSync(["taskset", "-acp", cores, String(pid)], { stdout: "ignore", stderr: "ignore" });
}

/** Server i has core i. */
export function pin(fleet: Fleet): void {
  const { servers } = fleet;
  const left = CORES > servers.length ? `${servers.length}-${CORES - 1}` : `0-${CORES - 1}`;
  const own = new Set(servers.map(({ pid }) => pid));
  for (const [core, { pid }] of servers.entries()) {
    for (const member of livingIn(pid)) bind(member, String(core));
  }
  for (const group of fleet.processGroups) {
    if (!own.has(group)) for (const member of livingIn(group)) bind(member, left);
  }
  bind(fleet.pid, left);
  bind(process.pid, left);
}

/** Processes of the lowest priority (SCHED_IDLE) that keep each server's core busy whenever its server is idle. */
export class Fillers {
  #children: Bun.Subprocess[] = [];

  get pids(): number[] {
    return this.#children.map(({ pid }) => pid);
  }

  start(servers: number): void {
    this.#children = Array.from({ length: servers }, (_, core) =>
      Bun.spawn(
        ["chrt", "-i", "0", "taskset", "-c", String(core), "sh", "-c", "while :; do :; done"],
        { stdout: "ignore", stderr: "ignore" },
      ),
    );
  }

  stop(): void {
    for (const child of this.#children) child.kill("SIGKILL");
    this.#children = [];
  }
}
