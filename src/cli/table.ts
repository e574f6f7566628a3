// The closing tables: one run, or several beside one another and against the first. It prints what the
// reports say and computes nothing but ratios.

import type { WorkerReport } from "../core/rollout/meter.ts";
import { formatBytes, formatCount, formatSeconds, formatShare } from "./format.ts";
import { type Column, tableOf, textTable } from "./output.ts";
import { median, type Round, type RoundsReport, type Runs } from "./rounds.ts";
import { paint } from "./terminal.ts";

/** Limit of runs beside the first in one table; further runs follow in another. */
const OTHERS_MAX = 2;
/** Longer names (a policy, perhaps with a draft mode) are cut to this many characters. */
const NAME_CHARACTERS_MAX = 16;
/** Ratios that differ from 1 by less than this are called the same. */
const SAME = 0.005;

interface Row {
  readonly name: string;
  readonly show: (run: RoundsReport) => string;
  /** Compares a run with the first one; absent where more is neither better nor worse. */
  readonly ratio?: (first: RoundsReport, run: RoundsReport) => string;
  /** Condition under which the row is shown: it holds for one of the runs. */
  readonly when?: (run: RoundsReport) => boolean;
}

/** time: less is faster. rate: more is better. count: fewer is better. */
type RatioKind = "time" | "rate" | "count";

/** A time measured in every round: its median, the ratios within rounds, and with two rounds or more their ranges. */
function times(name: string, secondsOf: (round: Round) => number): readonly [Row, Row] {
  const secondsIn = ({ rounds }: RoundsReport) => rounds.map(secondsOf);
  const factorsOf = (first: RoundsReport, run: RoundsReport) => {
    const base = secondsIn(first);
    const all = secondsIn(run).map((value, i) => (base[i] ?? Number.NaN) / value);
    return all.filter(Number.isFinite);
  };
  return [
    {
      name,
      show: (run) => formatSeconds(median(secondsIn(run))),
      ratio: (first, run) => {
        const factors = factorsOf(first, run);
        return factors.length === 0 ? "" : describeRatio("time", median(factors), 1);
      },
    },
    {
      name: "  by round",
      show: (run) => rangeOf(secondsIn(run)),
      ratio: (first, run) => {
        const factors = factorsOf(first, run).sort((a, b) => a - b);
        const [low = 0, high = low] = [factors[0], factors.at(-1)];
        return factors.length === 0 ? "" : `${low.toFixed(2)} - ${high.toFixed(2)}`;
      },
      when: ({ rounds }) => rounds.length > 1,
    },
  ];
}

type Figure = (run: RoundsReport) => number;

/** A row with a figure and its ratio to the first run's. */
function compared(name: string, kind: RatioKind, value: Figure, show = formatCount): Row {
  const ratio: Row["ratio"] = (first, run) => describeRatio(kind, value(first), value(run));
  return { name, show: (run) => show(value(run)), ratio };
}

/** A row with figures, which is shown if one of them is above 0. */
function ifAny(name: string, values: readonly Figure[], show = formatCount): Row {
  return {
    name,
    show: (run) => values.map((value) => show(value(run))).join(" / "),
    when: (run) => values.some((value) => value(run) > 0),
  };
}

/** The largest value of a figure over the engines. */
function most(of: (worker: WorkerReport) => number): Figure {
  return ({ workers }) => Math.max(0, ...workers.map(of));
}

const stepsOf = ({ steps }: WorkerReport) => steps;
/** Tokens that an engine computed: prefilled, drawn one by one, or drafted. */
const rowsOf = (of: WorkerReport) =>
  of.prefill_tokens + of.output_tokens - of.accepted_tokens + of.drafted_tokens;

const twoDigits = (value: number) => value.toFixed(2);

const ROWS: readonly Row[] = [
  { name: "drafts", show: ({ draft }) => draft },
  ...times("wall time", ({ wall_s }) => wall_s),
  ...times("tail time (last 10 %)", ({ tail_s }) => tail_s),
  ...times("CPU time", ({ cpu_s }) => cpu_s),
  ...times("engine time (busiest)", ({ engine_s }) => engine_s),
  compared("output tokens/s", "rate", (run) => run.output_tokens_per_s),
  { name: "output tokens", show: (run) => formatCount(run.output_tokens + run.resumed_tokens) },
  ifAny("  from the journal", [(run) => run.resumed_tokens]),
  {
    name: "responses finished",
    show: (run) => `${formatCount(run.finished_requests)} of ${formatCount(run.requests)}`,
    when: (run) => run.finished_requests !== run.requests,
  },
  compared("preemptions", "count", (run) => run.preemptions),
  compared("recomputed tokens", "count", (run) => run.recomputed_tokens),
  compared("engine steps (busiest)", "count", most(stepsOf)),
  compared("rows (busiest)", "count", most(rowsOf)),
  { name: "chunks", show: (run) => formatCount(run.chunks) },
  {
    name: "migrations",
    show: ({ migrations, migrated_bytes: bytes }) =>
      migrations === 0 ? "0" : `${formatCount(migrations)} (${formatBytes(bytes)})`,
  },
  { name: "drafted tokens", show: (run) => formatCount(run.drafted_tokens) },
  {
    name: "accepted tokens",
    show: ({ accepted_tokens: accepted, drafted_tokens: drafted }) =>
      drafted === 0 ? "0" : `${formatCount(accepted)} (${formatShare(accepted / drafted)})`,
  },
  { name: "mean acceptance length", show: (run) => twoDigits(run.mean_acceptance_length) },
  compared("tokens per step", "rate", (run) => run.tokens_per_step, twoDigits),
  {
    name: "workers busy",
    show: ({ workers }) =>
      formatShare(workers.reduce((sum, { busy_share }) => sum + busy_share / workers.length, 0)),
  },
  ifAny("KV pool hits / misses", [(run) => run.kv_pool.hits, (run) => run.kv_pool.misses]),
  ifAny("KV pool peak", [(run) => run.kv_pool.memory_bytes_peak], formatBytes),
  ifAny("KV pool peak on disk", [(run) => run.kv_pool.disk_bytes_peak], formatBytes),
  ifAny("KV pool evictions", [(run) => run.kv_pool.evictions]),
  ifAny("disk errors / corrupt", [(run) => run.kv_pool.disk_errors, (run) => run.kv_pool.corrupt]),
  {
    name: "tokens lost / twice",
    show: (run) => `${formatCount(run.lost_tokens)} / ${formatCount(run.duplicated_tokens)}`,
  },
];

/** The closing tables: each value beside its ratio to the first run's. No final line end. */
export function comparisonTable(runs: Runs): string {
  const named = Object.entries(runs).map(
    ([name, run]) => [name.slice(0, NAME_CHARACTERS_MAX), run] as const,
  );
  const [first, ...others] = named;
  if (first === undefined) return "no runs";
  const parts = [headline(first[1])];
  for (let from = 0; from === 0 || from < others.length; from += OTHERS_MAX) {
    parts.push(comparison(first, others.slice(from, from + OTHERS_MAX)));
  }
  parts.push(workerTable(named));
  return parts.join("\n\n");
}

type NamedRun = readonly [name: string, run: RoundsReport];

function headline(run: RoundsReport): string {
  const size = `${formatCount(run.groups)} groups, ${formatCount(run.requests)} responses`;
  const mode = run.deterministic ? ", deterministic kernels" : "";
  return paint(`${size}, weight epoch ${run.weight_epoch}${mode}`, "bold");
}

function comparison(first: NamedRun, others: readonly NamedRun[]): string {
  const title = ([name, run]: NamedRun): string => `${name}${run.interrupted ? " (cut)" : ""}`;
  const head = ["", title(first), ...others.flatMap((one) => [title(one), `vs ${first[0]}`])];
  const isShown = ({ when = () => true }: Row) => [first, ...others].some(([, run]) => when(run));
  const rows = ROWS.filter(isShown).map(({ name, show, ratio }) => {
    const cells = others.flatMap(([, run]) => {
      // Runs of unlike amounts of work do not compare.
      const isComparable = !run.interrupted && !first[1].interrupted;
      return [show(run), (isComparable && ratio?.(first[1], run)) || ""];
    });
    return [name, show(first[1]), ...cells];
  });
  return textTable(head, rows);
}

/** A range as "9.15 - 12.0 s", with the unit once, so that three runs fit side by side. */
function rangeOf(seconds: readonly number[]): string {
  const low = formatSeconds(Math.min(...seconds)).replace(/ s$/, "");
  return `${low} - ${formatSeconds(Math.max(...seconds))}`;
}

/** `to` against `from` in words: "1.45x faster", "3.2x fewer", "none", "same". */
export function describeRatio(kind: RatioKind, from: number, to: number): string {
  if (from === to) return "same";
  const worse = kind === "rate" ? to < from : to > from;
  const style = worse ? "red" : "green";
  if (to === 0) return paint("none", style);
  if (from === 0) return paint("from none", style);
  const factor = Math.max(from / to, to / from);
  if (factor < 1 + SAME) return "same";
  const words = {
    time: worse ? "slower" : "faster",
    rate: worse ? "less" : "more",
    count: worse ? "more" : "fewer",
  };
  const digits = factor < 10 ? 2 : factor < 100 ? 1 : 0;
  const text = factor >= 1e4 ? factor.toExponential(1) : factor.toFixed(digits);
  return paint(`${text}x ${words[kind]}`, style);
}

/** `run`: the run's name, in the row of its first worker. */
type WorkerRow = WorkerReport & { readonly run: string };

const WORKER_COLUMNS: readonly Column<WorkerRow>[] = [
  ["worker", ({ worker }) => String(worker)],
  ["busy", (row) => formatShare(row.busy_share)],
  ["idle tail", (row) => formatSeconds(row.idle_tail_s)],
  ["tokens", (row) => formatCount(row.output_tokens)],
  ["recomputed", (row) => formatCount(row.recomputed_tokens)],
  ["preempted", (row) => formatCount(row.preemptions)],
  [
    "KV tokens peak",
    ({ kv_tokens_peak: peak, kv_tokens: all }) =>
      `${formatShare(peak / Math.max(1, all))} of ${formatCount(all)}`,
  ],
];

function workerTable(runs: readonly NamedRun[]): string {
  const rows = runs.flatMap(([name, { workers }]) =>
    workers.map((worker, i) => ({ ...worker, run: i === 0 ? name : "" })),
  );
  const named: Column<WorkerRow> = ["", ({ run }) => run];
  return tableOf(rows, runs.length === 1 ? WORKER_COLUMNS : [named, ...WORKER_COLUMNS]);
}
