// The runs of one command in several rounds, interleaved: what each took, whether other work on the machine got in the
// way, and sentences on why one was faster than another: what drafts gave, and what balance and kept KV gave. Wall times
// of a busy machine are unreliable; ratios within a round and CPU times are better.

import { readFileSync } from "node:fs";
import type { RolloutRequest } from "../core/request/buffer.ts";
import type { RunReport } from "../core/rollout/report.ts";

/** One run in one round. Times in seconds. */
export interface Round {
  readonly wall_s: number;
  readonly tail_s: number;
  /** CPU time of this process, engines included. */
  readonly cpu_s: number;
  /** Time in steps of the busiest engine: what the iteration would take if the engine had a machine to itself. */
  readonly engine_s: number;
  /** Number of responses with the same tokens as in the first run. Absent in older reports. */
  readonly equal_responses?: number;
  /** CPU time of other processes, as a share of all cores' time; null: the system does not report it. */
  readonly others_cpu_share: number | null;
}

/** Report of the run with the median wall time, with all rounds in the order in which they ran. */
export type RoundsReport = RunReport & { readonly rounds: readonly Round[] };

/** Runs by name, in the order in which they ran. */
export type Runs = Readonly<Record<string, RoundsReport>>;

/** Share of CPU time of other processes from which wall times of rounds are not comparable. */
const BUSY_SHARE = 0.1;
const INSTEAD = "; engine times do: CPU time in steps, of the engine with most of it";

/** Runs once, and measures CPU times and the machine's load. */
export async function measured(run: () => Promise<RunReport>) {
  const before = usage();
  const report = await run();
  const after = usage();
  const { wall_s, tail_s, workers } = report;
  const engineS = Math.max(0, ...workers.map(({ busy_s }) => busy_s));
  const times = { wall_s, tail_s, cpu_s: after.ownS - before.ownS, engine_s: engineS };
  return { report, round: { ...times, others_cpu_share: othersShare(before, after) } };
}

interface Usage {
  readonly ownS: number;
  /** CPU time of all cores together: busy, and in total; null: the system does not report it. */
  readonly machine: { readonly busyS: number; readonly totalS: number } | null;
}

function usage(): Usage {
  const { user, system } = process.cpuUsage();
  return { ownS: (user + system) / 1e6, machine: machineUsage() };
}

/** Seconds of a tick, in which Linux counts CPU time (proc(5), /proc/stat). */
const TICK_S = 0.01;

export function machineUsage(): Usage["machine"] {
  if (process.platform !== "linux") return null;
  const [, ...ticks] = readFileSync("/proc/stat", "utf8").split("\n", 1)[0]?.split(/\s+/) ?? [];
  // user nice system idle iowait irq softirq steal; what follows is counted in user already.
  const [user = 0, nice = 0, system = 0, idle = 0, iowait = 0, irq = 0, softirq = 0, steal = 0] =
    ticks.map(Number);
  const busy = user + nice + system + irq + softirq + steal;
  return { busyS: busy * TICK_S, totalS: (busy + idle + iowait) * TICK_S };
}

function othersShare(before: Usage, after: Usage): number | null {
  if (before.machine === null || after.machine === null) return null;
  const busyS = after.machine.busyS - before.machine.busyS - (after.ownS - before.ownS);
  const totalS = after.machine.totalS - before.machine.totalS;
  return totalS <= 0 ? null : Math.min(1, Math.max(0, busyS / totalS));
}

/** Median: for an even number of values, the mean of the middle two. */
export function median(values: readonly number[]): number {
  const sorted = values.toSorted((a, b) => a - b);
  const middle = sorted.length / 2;
  const [low = 0, high = low] = sorted.slice(Math.ceil(middle) - 1, Math.floor(middle) + 1);
  return (low + high) / 2;
}

/** The report of the round with the median wall time (the lower of the middle two), with all rounds. */
export function withRounds(
  runs: readonly { readonly report: RunReport; readonly round: Round }[],
): RoundsReport {
  const byWall = runs.toSorted((a, b) => a.round.wall_s - b.round.wall_s);
  const middle = byWall[Math.floor((byWall.length - 1) / 2)];
  if (middle === undefined) throw new RangeError("there is at least one round");
  return { ...middle.report, rounds: runs.map(({ round }) => round) };
}

/**
 * Warnings that wall times are of a busy machine; empty: it was quiet enough, or its load is unknown. Engines that are
 * separate servers do not report their CPU time.
 */
export function busyNotes(reports: readonly RoundsReport[], areServers = false): string[] {
  const shares = reports.flatMap(({ rounds }) =>
    rounds.flatMap(({ others_cpu_share }) => (others_cpu_share === null ? [] : [others_cpu_share])),
  );
  const largest = Math.max(0, ...shares);
  if (largest < BUSY_SHARE) return [];
  const percent = (share: number) => `${Math.round(100 * share)} %`;
  const low = percent(Math.min(...shares));
  const high = percent(largest);
  const range = low === high ? low : `${low} to ${high}`;
  const used = `The machine was busy: other processes used ${range} of its CPU time`;
  return [`${used}. Wall times do not compare${areServers ? "" : INSTEAD}.`];
}

/** Number of the group's responses with the same tokens as in `first`; responses that `first` lacks are added to it. */
export function equalResponses(
  first: Map<string, unknown>,
  group: string,
  requests: readonly RolloutRequest[],
): number {
  const equal = requests.filter(({ response, spec }) => {
    const key = `${group}/${spec.sampleIndex}`;
    const tokens = Bun.hash(response.tokens());
    if (!first.has(key)) first.set(key, tokens);
    return first.get(key) === tokens;
  });
  return equal.length;
}

/** Whether all runs made the same responses, in every round. */
export function areEqual(reports: Runs): boolean {
  return Object.values(reports).every(({ requests, rounds }) =>
    rounds.every(({ equal_responses }) => equal_responses === requests),
  );
}

/**
 * A sentence for each run after the first, with medians of the rounds' ratios, as in the table: ratios of engine times if
 * other processes lengthen wall times and all engines are embedded. It also tells why a run has no drafts, and how many of
 * its responses are equal to the first run's.
 *
 * Without drafts, a run's engines would have been busy for `draft_saved_s` longer (by their models of step time), so that
 * drafts made it (busy + saved) / busy times as fast. The rest is that engines idle less and recompute less KV.
 */
export function speedups(reports: Runs, servers: readonly string[] = []): string[] {
  const [base, ...others] = Object.entries(reports);
  if (base === undefined || base[1].interrupted) return [];
  const [baseName, first] = base;
  const isEngineTime = servers.length === 0 && busyNotes(Object.values(reports)).length > 0;
  const ofServers = "these servers make none";
  const none = servers.length > 0 ? ofServers : "by the step times measured here they do not pay";
  const secondsOf = ({ wall_s, engine_s }: Round) => (isEngineTime ? engine_s : wall_s);
  return others.flatMap(([name, run]) => {
    if (run.interrupted) return [];
    const ratios = run.rounds.flatMap((round, i) => {
      const of = first.rounds[i];
      return of === undefined ? [] : [secondsOf(of) / secondsOf(round)];
    });
    const speedup = median(ratios);
    const drafts = draftFactor(run) / draftFactor(first);
    const parts = [`${(speedup / drafts).toFixed(2)} from balance and KV kept`];
    if (run.draft_saved_s !== 0 || first.draft_saved_s !== 0) {
      parts.push(`${drafts.toFixed(2)} from drafts`);
    }
    const by = isEngineTime ? "By engine time " : "";
    const sentence = `${by}${name} finished ${speedup.toFixed(2)} times as fast as ${baseName}: ${parts.join(", ")}`;
    const equal = Math.min(...run.rounds.map((round) => round.equal_responses ?? Number.NaN));
    const why = run.draft !== "off" && run.drafts === 0 ? `; no drafts were made: ${none}` : "";
    const same = equal >= 0 ? `; ${equal} of ${run.requests} responses are equal` : "";
    return [`${sentence}${why}${same}.`];
  });
}

function draftFactor({ busy_s, draft_saved_s }: RoundsReport): number {
  return busy_s === 0 ? 1 : Math.max(1, (busy_s + draft_saved_s) / busy_s);
}
