// CPU time of process groups and of the whole machine, from /proc (Linux).

import { readdirSync, readFileSync } from "node:fs";

/** A tick is a hundredth of a second (proc(5)). */
const TICK_S = 0.01;

/** CPU seconds of all processes in these groups; those that have ended are not counted. */
export function cpuSecondsOf(groups: ReadonlySet<number>): number {
  let ticks = 0;
  for (const name of readdirSync("/proc")) {
    if (!/^\d+$/.test(name)) continue;
    try {
      const text = readFileSync(`/proc/${name}/stat`, "utf8");
      // The command stands in parentheses and may hold anything; the state follows it.
      const fields = text.slice(text.lastIndexOf(")") + 2).split(" ");
      if (groups.has(Number(fields[2]))) ticks += Number(fields[11]) + Number(fields[12]);
    } catch {
      // It has ended.
    }
  }
  return ticks * TICK_S;
}

/** CPU seconds of one process and its threads. */
export function cpuSecondsOfProcess(pid: number): number {
  const text = readFileSync(`/proc/${pid}/stat`, "utf8");
  const fields = text.slice(text.lastIndexOf(")") + 2).split(" ");
  return (Number(fields[11]) + Number(fields[12])) * TICK_S;
}

/** CPU time of all cores together: busy, and in total. */
export function machineSeconds(): { busyS: number; totalS: number } {
  const [, ...ticks] = readFileSync("/proc/stat", "utf8").split("\n", 1)[0]?.split(/\s+/) ?? [];
  // user nice system idle iowait irq softirq steal; what follows is counted in user already.
  const [user = 0, nice = 0, system = 0, idle = 0, iowait = 0, irq = 0, softirq = 0, steal = 0] =
    ticks.map(Number);
  const busy = user + nice + system + irq + softirq + steal;
  return { busyS: busy * TICK_S, totalS: (busy + idle + iowait) * TICK_S };
}
