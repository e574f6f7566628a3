// Makes one iteration on one system: all responses of all groups, each a request of its own, all sent at once, all with
// the same `max_tokens`. Returns what was seen from outside and from inside of the engines.

import { machineUsage } from "../../../src/cli/rounds.ts";
import { present } from "../../../src/core/base/assert.ts";
import { readMetrics, type ServerCounters } from "../../../src/engines/vllm/metrics.ts";
import { type Fleet, metricsOf } from "../../../test/vllm/fleet.ts";
import { cpuSecondsOf, cpuSecondsOfProcess } from "./cores.ts";
import { type EngineLog, type Plan, post, readLog, type Texts, tellPlan } from "./engine-log.ts";
import { hasPool, type Servers, type System } from "./systems.ts";

/** The tail: the last tenth of the requests (Seer, section 4.2). */
const TAIL_PART = 0.1;
/** Bun's fetch holds further requests back beyond 256. */
const REQUESTS_MAX = 240;

export interface Workload {
  readonly model: string;
  readonly plan: Plan;
  readonly siblings: number;
  readonly maxTokens: number;
  readonly seed: number;
}

export interface Run {
  /** Recorded texts by group. */
  readonly texts: readonly Texts[];
  /** Seconds since 1970. */
  readonly startS: number;
  /** When each response was there, in order: seconds from the start. */
  readonly finishedS: readonly number[];
  readonly wallS: number;
  readonly tailS: number;
  readonly counters: ServerCounters;
  readonly log: EngineLog;
  /** CPU seconds of both servers and of the pool's master, and of the sidecar (0: requests did not pass through it). */
  readonly serversCpuS: number;
  readonly sidecarCpuS: number;
  /** CPU time of processes that the bench did not start, as a share of all cores' time. */
  readonly othersCpuShare: number;
  /** The same of the sets of servers that were idle meanwhile. */
  readonly idleCpuShare: number;
}

interface Usage {
  readonly serversS: number;
  readonly sidecarS: number;
  readonly idleS: number;
  /** All that the bench started, and itself. */
  readonly oursS: number;
  readonly machine: { readonly busyS: number; readonly totalS: number };
}

export async function iteration(
  system: System,
  workload: Workload,
  servers: Servers,
): Promise<Run> {
  await servers.use(system);
  await forget(system);
  await tellPlan(system.urls, workload.plan);
  const before = { counters: await countersOf(system), usage: usageOf(system, servers) };
  const startS = Date.now() / 1000;
  const { texts, finishedMs } = await sendAll(system, workload);
  const after = { counters: await countersOf(system), usage: usageOf(system, servers) };
  const log = await readLog(system.urls);
  const finishedS = finishedMs.map((ms) => ms / 1000).toSorted((a, b) => a - b);
  const wallS = finishedS.at(-1) ?? 0;
  const tailFromS = finishedS[Math.ceil(finishedS.length * (1 - TAIL_PART)) - 1] ?? 0;
  const [from, to] = [before.usage, after.usage];
  const busyS = to.machine.busyS - from.machine.busyS - (to.oursS - from.oursS);
  const totalS = to.machine.totalS - from.machine.totalS;
  return {
    ...{ texts, startS, finishedS, wallS, tailS: wallS - tailFromS, log },
    counters: combined(after.counters, before.counters, -1),
    serversCpuS: to.serversS - from.serversS,
    sidecarCpuS: system.routing === "sidecar" ? to.sidecarS - from.sidecarS : 0,
    othersCpuShare: Math.max(0, busyS / totalS),
    idleCpuShare: (to.idleS - from.idleS) / totalS,
  };
}

/** KV of iterations before is dropped, so that systems that share servers begin alike. */
export async function forget({ urls, fleet }: System): Promise<void> {
  for (const url of urls) {
    const path = `/reset_prefix_cache${hasPool(fleet) ? "?reset_external=true" : ""}`;
    const answer = await fetch(url + path, { method: "POST" });
    if (!answer.ok) throw new Error(`${url}${path}: ${answer.status} ${await answer.text()}`);
  }
}

async function sendAll(
  system: System,
  { model, plan, siblings, maxTokens, seed }: Workload,
): Promise<{ texts: number[][][]; finishedMs: number[] }> {
  const texts: number[][][] = plan.prompts.map(() => []);
  const finishedMs: number[] = [];
  const open = new Map(system.urls.map((url) => [url, 0]));
  const startMs = performance.now();
  const send = async (group: number, sample: number): Promise<void> => {
    const base = serverFor(system, group, open);
    open.set(base, (open.get(base) ?? 0) + 1);
    const answer = (await post(`${base}/v1/completions`, {
      model,
      prompt: plan.prompts[group],
      max_tokens: maxTokens,
      temperature: 1,
      seed: seed + group * siblings + sample,
      logprobs: 0,
      return_token_ids: true,
      // The sidecar says by itself which response of its group a request is.
      ...(system.routing === "sidecar" ? {} : { vllm_xargs: { bench_sample: sample } }),
    })) as { choices: { token_ids: number[] }[] };
    open.set(base, (open.get(base) ?? 0) - 1);
    finishedMs.push(performance.now() - startMs);
    const row = texts[group];
    if (row !== undefined) row[sample] = answer.choices[0]?.token_ids ?? [];
  };
  const all = plan.prompts.flatMap((_, group) =>
    Array.from({ length: siblings }, (_, sample) => ({ group, sample })),
  );
  const next = all.values();
  const sender = async (): Promise<void> => {
    for (const { group, sample } of next) await send(group, sample);
  };
  await Promise.all(Array.from({ length: REQUESTS_MAX }, sender));
  return { texts, finishedMs };
}

function serverFor(system: System, group: number, open: ReadonlyMap<string, number>): string {
  if (system.routing === "sidecar") return system.fleet.url;
  const [first = "", ...others] = system.urls;
  if (system.routing === "turn") return system.urls[group % system.urls.length] ?? first;
  const openAt = (url: string): number => open.get(url) ?? 0;
  return others.reduce((least, url) => (openAt(url) < openAt(least) ? url : least), first);
}

async function countersOf({ urls }: System): Promise<ServerCounters> {
  const [first, ...others] = (await metricsOf(urls)).map((text) => readMetrics(text).counters);
  if (first === undefined) throw new Error("there is no server");
  return others.reduce((sum, counters) => combined(sum, counters, 1), first);
}

function combined(a: ServerCounters, b: ServerCounters, sign: 1 | -1): ServerCounters {
  const keys = Object.keys(a) as (keyof ServerCounters)[];
  const entries = keys.map((key) => [key, a[key] + sign * b[key]]);
  return Object.fromEntries(entries) as Record<keyof ServerCounters, number>;
}

function usageOf(system: System, servers: Servers): Usage {
  const secondsOf = (fleet: Fleet): number =>
    cpuSecondsOf(new Set(fleet.processGroups)) + cpuSecondsOfProcess(fleet.pid);
  const idleS = servers.fleets.filter((fleet) => fleet !== system.fleet).map(secondsOf);
  const idle = idleS.reduce((sum, s) => sum + s, 0);
  const serversS = cpuSecondsOf(new Set(system.fleet.processGroups));
  const sidecarS = cpuSecondsOfProcess(system.fleet.pid);
  const fillersS = servers.fillers.pids.reduce((sum, pid) => sum + cpuSecondsOfProcess(pid), 0);
  const oursS = idle + serversS + sidecarS + fillersS + cpuSecondsOfProcess(process.pid);
  return { serversS, sidecarS, idleS: idle, oursS, machine: present(machineUsage(), "on Linux") };
}
