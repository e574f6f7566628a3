// The closing tables: one run, or several beside one another and against the first. It prints what the
// reports say and computes nothing but ratios. No line is longer than TABLE_COLUMNS_MAX.

import { stripVTControlCharacters } from "node:util";
import Table from "cli-table3";
import type { WorkerReport } from "../core/rollout/report.ts";
import { formatBytes, formatCount, formatSeconds, formatShare } from "./format.ts";
import { median, type Round, type RoundsReport } from "./rounds.ts";
import { paint, terminalOf } from "./terminal.ts";

export const TABLE_COLUMNS_MAX = 100;

export interface TableOptions {
  readonly color: boolean;
  /** false: ASCII only. */
  readonly unicode: boolean;
}

/** Runs by the name they are shown under, in the order they ran. */
export type Runs = Readonly<Record<string, RoundsReport>>;

/** Runs beside the first one in one table, if they fit; further runs follow below. */
const OTHERS_MAX = 2;
/** Workers listed one by one; beyond it, a run has one line for all of them. */
const WORKERS_MAX = 8;
/** A name longer than this is cut: it is a policy, perhaps with a draft mode. */
const NAME_CHARACTERS_MAX = 16;
/** Ratios nearer to 1 than this are called the same. */
const SAME = 0.005;

interface Row {
  readonly name: string;
  readonly show: (run: RoundsReport) => string;
  /** How the runs compare; absent where more is neither better nor worse. */
  readonly ratio?: { readonly value: (run: RoundsReport) => number; readonly kind: RatioKind };
  /** Shown only if this holds for a run. */
  readonly when?: (run: RoundsReport) => boolean;
}

/** time: less is faster. rate: more is better. count: fewer is better. */
type RatioKind = "time" | "rate" | "count";

/** Measured in every round: medians, ratios within rounds, and from two rounds on their ranges. */
interface TimeRow {
  readonly name: string;
  readonly secondsOf: (round: Round) => number;
}

const TIMES: readonly TimeRow[] = [
  { name: "wall time", secondsOf: (round) => round.wall_s },
  { name: "tail time (last 10 %)", secondsOf: (round) => round.tail_s },
  { name: "CPU time", secondsOf: (round) => round.cpu_s },
];

const ROWS: readonly Row[] = [
  {
    name: "output tokens/s",
    show: (run) => formatCount(run.output_tokens_per_s),
    ratio: { value: (run) => run.output_tokens_per_s, kind: "rate" },
  },
  { name: "output tokens", show: (run) => formatCount(run.output_tokens) },
  {
    name: "responses finished",
    show: (run) => `${formatCount(run.finished_requests)} of ${formatCount(run.requests)}`,
    when: (run) => run.finished_requests !== run.requests,
  },
  {
    name: "preemptions",
    show: (run) => formatCount(run.preemptions),
    ratio: { value: (run) => run.preemptions, kind: "count" },
  },
  {
    name: "recomputed tokens",
    show: (run) => formatCount(run.recomputed_tokens),
    ratio: { value: (run) => run.recomputed_tokens, kind: "count" },
  },
  { name: "chunks", show: (run) => formatCount(run.chunks) },
  {
    name: "migrations",
    show: (run) =>
      run.migrations === 0
        ? "0"
        : `${formatCount(run.migrations)} (${formatBytes(run.migrated_bytes)})`,
  },
  { name: "drafted tokens", show: (run) => formatCount(run.drafted_tokens) },
  {
    name: "accepted tokens",
    show: (run) =>
      run.drafted_tokens === 0
        ? "0"
        : `${formatCount(run.accepted_tokens)} (${formatShare(run.accepted_tokens / run.drafted_tokens)})`,
  },
  { name: "mean acceptance length", show: (run) => run.mean_acceptance_length.toFixed(2) },
  {
    name: "tokens per step",
    show: (run) => run.tokens_per_step.toFixed(2),
    ratio: { value: (run) => run.tokens_per_step, kind: "rate" },
  },
  {
    name: "workers busy",
    show: (run) => formatShare(mean(run.workers.map((worker) => worker.busy_share))),
  },
  {
    name: "KV pool hits / misses",
    show: (run) => `${formatCount(run.kv_pool.hits)} / ${formatCount(run.kv_pool.misses)}`,
    when: (run) => run.kv_pool.hits + run.kv_pool.misses > 0,
  },
  {
    name: "KV pool peak",
    show: (run) => formatBytes(run.kv_pool.memory_bytes_peak),
    when: (run) => run.kv_pool.memory_bytes_peak > 0,
  },
  {
    name: "KV pool peak on disk",
    show: (run) => formatBytes(run.kv_pool.disk_bytes_peak),
    when: (run) => run.kv_pool.disk_bytes_peak > 0,
  },
  {
    name: "KV pool evictions",
    show: (run) => formatCount(run.kv_pool.evictions),
    when: (run) => run.kv_pool.evictions > 0,
  },
  {
    name: "disk errors / corrupt",
    show: (run) => `${formatCount(run.kv_pool.disk_errors)} / ${formatCount(run.kv_pool.corrupt)}`,
    when: (run) => run.kv_pool.disk_errors + run.kv_pool.corrupt > 0,
  },
  {
    name: "tokens lost / twice",
    show: (run) => `${formatCount(run.lost_tokens)} / ${formatCount(run.duplicated_tokens)}`,
  },
];

/** The closing tables of one run, ready to print, without a line end at the end. */
export function runTable(
  name: string,
  run: RoundsReport,
  options: TableOptions = standard(),
): string {
  return comparisonTable({ [name]: run }, options);
}

/** The same for several runs: each value beside its ratio to the first run's. */
export function comparisonTable(runs: Runs, options: TableOptions = standard()): string {
  const named = Object.entries(runs).map(
    ([name, run]) => [name.slice(0, NAME_CHARACTERS_MAX), run] as const,
  );
  const [first, ...others] = named;
  if (first === undefined) return "no runs";
  const parts = [headline(first[1], options)];
  for (let from = 0; from === 0 || from < others.length; ) {
    let taken = others.slice(from, from + OTHERS_MAX);
    let table = comparison(first, taken, options);
    if (columnsOf(table) > TABLE_COLUMNS_MAX) {
      taken = taken.slice(0, 1);
      table = comparison(first, taken, options);
    }
    parts.push(table);
    from += Math.max(1, taken.length);
  }
  parts.push(workerTable(named, options));
  return parts.join("\n\n");
}

/** What standard output can show. */
function standard(): TableOptions {
  return terminalOf(process.stdout, process.env);
}

type NamedRun = readonly [name: string, run: RoundsReport];

function headline(run: RoundsReport, options: TableOptions): string {
  const size = `${formatCount(run.groups)} groups, ${formatCount(run.requests)} responses`;
  const mode = run.deterministic ? ", deterministic kernels" : "";
  return paint(`${size}, weight epoch ${run.weight_epoch}${mode}`, "bold", options.color);
}

function comparison(first: NamedRun, others: readonly NamedRun[], options: TableOptions): string {
  const title = ([name, run]: NamedRun): string => `${name}${run.interrupted ? " (cut)" : ""}`;
  const head = ["", title(first), ...others.flatMap((one) => [title(one), `vs ${first[0]}`])];
  const table = newTable(head, options);
  table.push(["drafts", first[1].draft, ...others.flatMap(([, run]) => [run.draft, ""])]);
  for (const row of TIMES) table.push(...timeRows(row, first[1], others, options));
  for (const row of ROWS) {
    const { when, ratio } = row;
    if (when !== undefined && ![first, ...others].some(([, run]) => when(run))) continue;
    const cells = others.flatMap(([, run]) => {
      // Runs of unlike amounts of work do not compare.
      const comparable = ratio !== undefined && !run.interrupted && !first[1].interrupted;
      const text = comparable
        ? describeRatio(ratio.kind, ratio.value(first[1]), ratio.value(run), options.color)
        : "";
      return [row.show(run), text];
    });
    table.push([row.name, row.show(first[1]), ...cells]);
  }
  return print(table);
}

function timeRows(
  { name, secondsOf }: TimeRow,
  first: RoundsReport,
  others: readonly NamedRun[],
  options: TableOptions,
): string[][] {
  const secondsIn = ({ rounds }: RoundsReport) => rounds.map(secondsOf);
  const base = secondsIn(first);
  const medians = [name, formatSeconds(median(base))];
  const ranges = ["  by round", rangeOf(base)];
  for (const [, run] of others) {
    const seconds = secondsIn(run);
    // Runs of unlike amounts of work do not compare.
    const factors =
      run.interrupted || first.interrupted
        ? []
        : seconds.map((value, i) => (base[i] ?? Number.NaN) / value).filter(Number.isFinite);
    const ratio =
      factors.length === 0 ? "" : describeRatio("time", median(factors), 1, options.color);
    medians.push(formatSeconds(median(seconds)), ratio);
    const sorted = factors.toSorted((a, b) => a - b);
    const [low = 0, high = 0] = [sorted.at(0), sorted.at(-1)];
    ranges.push(
      rangeOf(seconds),
      sorted.length === 0 ? "" : `${low.toFixed(2)} - ${high.toFixed(2)}`,
    );
  }
  return first.rounds.length > 1 ? [medians, ranges] : [medians];
}

/** "9.15 - 12.0 s": the unit once, so that three runs fit side by side. */
function rangeOf(seconds: readonly number[]): string {
  const low = formatSeconds(Math.min(...seconds)).replace(/ s$/, "");
  return `${low} - ${formatSeconds(Math.max(...seconds))}`;
}

/** `to` against `from` in words: "1.45x faster", "3.2x fewer", "none", "same". */
export function describeRatio(kind: RatioKind, from: number, to: number, color: boolean): string {
  if (from === to) return "same";
  const worse = kind === "rate" ? to < from : to > from;
  const style = worse ? "red" : "green";
  if (to === 0) return paint("none", style, color);
  if (from === 0) return paint("from none", style, color);
  const factor = Math.max(from / to, to / from);
  if (factor < 1 + SAME) return "same";
  const words = {
    time: worse ? "slower" : "faster",
    rate: worse ? "less" : "more",
    count: worse ? "more" : "fewer",
  };
  const digits = factor < 10 ? 2 : factor < 100 ? 1 : 0;
  return paint(`${formatFactor(factor, digits)}x ${words[kind]}`, style, color);
}

function formatFactor(factor: number, digits: number): string {
  return factor >= 1e4 ? factor.toExponential(1) : factor.toFixed(digits);
}

function workerTable(runs: readonly NamedRun[], options: TableOptions): string {
  const several = runs.length > 1;
  const columns = [
    "worker",
    "busy",
    "idle tail",
    "tokens",
    "recomputed",
    "preempted",
    "KV tokens peak",
  ];
  const table = newTable(several ? ["", ...columns] : columns, options);
  for (const [name, run] of runs) {
    const rows =
      run.workers.length <= WORKERS_MAX
        ? run.workers.map(workerCells)
        : [summaryCells(run.workers)];
    for (const [i, cells] of rows.entries()) {
      table.push(several ? [i === 0 ? name : "", ...cells] : cells);
    }
  }
  return print(table);
}

function workerCells(worker: WorkerReport): string[] {
  return [
    String(worker.worker),
    formatShare(worker.busy_share),
    formatSeconds(worker.idle_tail_s),
    formatCount(worker.output_tokens),
    formatCount(worker.recomputed_tokens),
    formatCount(worker.preemptions),
    `${formatShare(worker.kv_tokens_peak / Math.max(1, worker.kv_tokens))} of ${formatCount(worker.kv_tokens)}`,
  ];
}

/** One line for many workers: least to most of what is per worker, sums of what adds up. */
function summaryCells(workers: readonly WorkerReport[]): string[] {
  const range = (values: readonly number[], digits: number, unit: string): string =>
    `${Math.min(...values).toFixed(digits)}-${Math.max(...values).toFixed(digits)}${unit}`;
  const sum = (values: readonly number[]): string =>
    formatCount(values.reduce((total, value) => total + value, 0));
  const peaks = workers.map((worker) => worker.kv_tokens_peak / Math.max(1, worker.kv_tokens));
  const busy = workers.map((worker) => worker.busy_share * 100);
  const idle = workers.map((worker) => worker.idle_tail_s);
  return [
    `all ${workers.length}`,
    range(busy, 0, "%"),
    range(idle, 1, " s"),
    sum(workers.map((worker) => worker.output_tokens)),
    sum(workers.map((worker) => worker.recomputed_tokens)),
    sum(workers.map((worker) => worker.preemptions)),
    range(
      peaks.map((share) => share * 100),
      0,
      "%",
    ),
  ];
}

function mean(values: readonly number[]): number {
  return values.reduce((sum, value) => sum + value, 0) / Math.max(1, values.length);
}

const LINES_UNICODE = {
  top: "─",
  "top-mid": "─",
  "top-left": "─",
  "top-right": "─",
  mid: "─",
  "mid-mid": "─",
  "left-mid": "─",
  "right-mid": "─",
  bottom: "─",
  "bottom-mid": "─",
  "bottom-left": "─",
  "bottom-right": "─",
  left: "",
  middle: " ",
  right: "",
};

const LINES_ASCII = Object.fromEntries(
  Object.entries(LINES_UNICODE).map(([name, char]) => [name, char === "─" ? "-" : char]),
);

function newTable(head: readonly string[], options: TableOptions): InstanceType<typeof Table> {
  return new Table({
    head: head.map((name) => paint(name, "bold", options.color)),
    colAligns: head.map((_, i) => (i === 0 ? "left" : "right")),
    chars: options.unicode ? LINES_UNICODE : LINES_ASCII,
    style: { head: [], border: [], compact: true, "padding-left": 0, "padding-right": 1 },
  });
}

/** The table's lines, with nothing after their last character and rules as wide as the widest one. */
function print(table: InstanceType<typeof Table>): string {
  const lines = table.toString().split("\n");
  const isRule = (line: string): boolean => /^[─-]+$/.test(line);
  const trimmed = lines.map((line) => (isRule(line) ? line : line.trimEnd()));
  const width = columnsOf(trimmed.filter((line) => !isRule(line)).join("\n"));
  return trimmed.map((line) => (isRule(line) ? line.slice(0, width) : line)).join("\n");
}

function columnsOf(text: string): number {
  return Math.max(...text.split("\n").map((line) => stripVTControlCharacters(line).length));
}
