// CPU time of process groups, from /proc (Linux).

import { readdirSync, readFileSync } from "node:fs";

/** A tick is a hundredth of a second (proc(5)). */
const TICK_S = 0.01;

/** CPU seconds of all processes in these groups with such names; those that have ended are not counted. */
export function cpuSecondsOf(groups: ReadonlySet<number>, names = /^/): number {
  let ticks = 0;
  for (const name of readdirSync("/proc")) {
    if (!/^\d+$/.test(name)) continue;
    try {
      const text = readFileSync(`/proc/${name}/stat`, "utf8");
      // The command stands in parentheses and may hold anything; the state follows it.
      const fields = text.slice(text.lastIndexOf(")") + 2).split(" ");
      if (!names.test(text.slice(text.indexOf("(") + 1))) continue;
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
