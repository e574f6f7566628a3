// Cores of two servers on one machine, as if each had a machine of its own: each server has a core, everything else
// (sidecars, the pool's master, the bench) the cores that are left, or all where none is left. Where a server's step takes
// longer while the other works, fillers keep every server's core busy whenever its server is idle.

import { readdirSync, readFileSync } from "node:fs";
import { cpus } from "node:os";
import { median } from "../../../src/cli/rounds.ts";
import { type Fleet, livingIn } from "../../../test/vllm/fleet.ts";
import { post, promptsOf, readLog, tellPlan } from "./engine-log.ts";

const CORES = cpus().length;

function bind(pid: number, cores: string): void {
  // -a: all threads of the process; those that it starts later inherit.
  Bun.spawnSync(["taskset", "-acp", cores, String(pid)], { stdout: "ignore", stderr: "ignore" });
}

/** Server i has core i. */
export function pin(fleet: Fleet): void {
  const { servers } = fleet;
  const left = CORES > servers.length ? `${servers.length}-${CORES - 1}` : `0-${CORES - 1}`;
  const coreOf = new Map(servers.map(({ pid }, core) => [pid, String(core)]));
  for (const group of new Set([...coreOf.keys(), ...fleet.processGroups])) {
    for (const member of livingIn(group)) bind(member, coreOf.get(group) ?? left);
  }
  bind(fleet.pid, left);
  bind(process.pid, left);
}

/** Processes of the lowest priority (SCHED_IDLE), one on the core of each server. */
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

/** Largest ratio of step times, with the other server busy over idle, that needs no fillers. */
const BUSY_RATIO_MAX = 1.05;
const PROBE_TOKENS = 160;

/** Median time of a step of one request while the other server works, over that while it is idle. */
async function busyRatio(urls: readonly string[], model: string): Promise<number> {
  const [first = "", second = ""] = urls;
  const prompts = await promptsOf(first, model, 2);
  await tellPlan(urls, { eos: -1, prompts, texts: null });
  const make = async (url: string, prompt: number): Promise<number[]> => {
    await post(`${url}/v1/completions`, {
      model,
      prompt: prompts[prompt],
      max_tokens: PROBE_TOKENS,
      temperature: 1,
      ignore_eos: true,
      vllm_xargs: { bench_sample: 0 },
    });
    const { steps } = await readLog([url]);
    return steps.flat().flatMap((s) => (s.prefillRows === 0 ? [s.endS - s.beginS] : []));
  };
  await make(first, 0);
  const alone = await make(first, 1);
  const [beside] = await Promise.all([make(first, 0), make(second, 1)]);
  return median(beside) / median(alone);
}

/** Measures the ratio, and starts fillers where it is too large and they help. Returns it before and, with fillers, after. */
export async function separate(
  urls: readonly string[],
  model: string,
  fillers: Fillers,
): Promise<{ busy_over_idle: number; with_fillers: number | null }> {
  const before = await busyRatio(urls, model);
  const told = `a step takes ${before.toFixed(3)} times as long while the other server works`;
  if (before <= BUSY_RATIO_MAX) {
    console.error(told);
    return { busy_over_idle: before, with_fillers: null };
  }
  fillers.start(urls.length);
  const after = await busyRatio(urls, model);
  if (after >= before) fillers.stop();
  const verdict = after < before ? "" : ", so there is none";
  console.error(`${told}; with a filler on each idle core ${after.toFixed(3)}${verdict}`);
  return { busy_over_idle: before, with_fillers: after };
}

/** A tick is a hundredth of a second (proc(5)). */
const TICK_S = 0.01;

/** CPU seconds of all processes in these groups with such names; those that have ended are not counted. */
export function cpuSecondsOf(groups: ReadonlySet<number>, names = /^/): number {
  let ticks = 0;
  for (const pid of readdirSync("/proc").filter((name) => /^\d+$/.test(name))) {
    try {
      const { name, group, ticks: own } = statOf(pid);
      if (names.test(name) && groups.has(group)) ticks += own;
    } catch {
      // It has ended.
    }
  }
  return ticks * TICK_S;
}

/** CPU seconds of one process and its threads. */
export const cpuSecondsOfProcess = (pid: number): number => statOf(pid).ticks * TICK_S;

function statOf(pid: number | string): { name: string; group: number; ticks: number } {
  const text = readFileSync(`/proc/${pid}/stat`, "utf8");
  // The command stands in parentheses and may hold anything; the state follows it.
  const end = text.lastIndexOf(")");
  const fields = text.slice(end + 2).split(" ");
  const name = text.slice(text.indexOf("(") + 1, end);
  return { name, group: Number(fields[2]), ticks: Number(fields[11]) + Number(fields[12]) };
}
