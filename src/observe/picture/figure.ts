// The data of the picture of an iteration: what each engine's time went into, and where the responses of the longest group
// ran. It is made from the timeline once, is small whatever the iteration's size, and is saved beside the drawing.

import type { ResponseTimeline, Timeline } from "../../core/rollout/timeline.ts";

/** One measured iteration, of `foretoken rollout --report`, a sidecar or `bench:vllm`. */
export interface MeasuredRun {
  readonly name: string;
  readonly wall_s: number;
  readonly tail_s: number;
  readonly preemptions: number;
  readonly timeline: Pick<Timeline, "responses" | "workers">;
}

/** Shares between 0 and 1, one for each of COLUMNS equal parts of the run's time. */
type Column = readonly number[];

export interface EngineLane {
  readonly name: string;
  /** Shares of the run's time in which the engine ran no chunk, and in which it recomputed KV. */
  readonly idle: number;
  readonly recomputing: number;
  readonly over_time: {
    readonly idle: Column;
    readonly recomputing: Column;
    /** Number of running requests, relative to the maximum on any engine of the run. */
    readonly running: Column;
    readonly kv: Column;
  };
}

/** A time, in seconds, in which a response ran on one engine. */
export type BarPiece = readonly [engine: number, fromS: number, toS: number];

export interface ResponseBar {
  readonly index: number;
  readonly tokens: number;
  readonly joined_s: number;
  readonly end_s: number;
  readonly moves: number;
  readonly pieces: readonly BarPiece[];
}

export interface RunFigure extends Omit<MeasuredRun, "timeline"> {
  readonly engines: readonly EngineLane[];
  /** Rate of all engines together, for each of COLUMNS equal parts of the run's time. */
  readonly tokens_per_s: readonly number[];
  /** The group with the most tokens, its longest responses first; null: nothing has run. */
  readonly longest: {
    readonly group: string;
    readonly size: number;
    readonly responses: readonly ResponseBar[];
  } | null;
}

export const COLUMNS = 180;
/** Limit of the drawn responses of the longest group. */
const BARS_MAX = 16;
/** Chunks on one engine with less time than this between them are drawn as one. */
const JOINED_S = 0.02;

export function figureOf(run: MeasuredRun): RunFigure {
  const { name, wall_s, tail_s, preemptions, timeline } = run;
  const wallMs = Math.max(1e-3, wall_s * 1000);
  const busy = new Map(timeline.workers.map(({ worker }) => [worker, [] as [number, number][]]));
  for (const { chunks, end_ms } of timeline.responses) {
    for (const [worker, startMs, endMs] of chunks) {
      busy.get(worker)?.push([startMs, endMs ?? end_ms ?? wallMs]);
    }
  }
  const runningMax = timeline.workers.reduce(
    (most, { running }) => running.reduce((higher, n) => Math.max(higher, n), most),
    1,
  );
  const engines = timeline.workers.map((worker) =>
    laneOf(worker, { busy: busy.get(worker.worker) ?? [], wallMs, runningMax }),
  );
  const longest = longestGroup(timeline);
  const tokens_per_s = ratesOf(timeline, wallMs);
  return { name, wall_s, tail_s, preemptions, engines, tokens_per_s, longest };
}

function ratesOf({ workers }: MeasuredRun["timeline"], wallMs: number): number[] {
  const rates = new Shares(wallMs);
  for (const { at_ms, output_tokens: tokens } of workers) {
    for (const [i, fromMs] of at_ms.entries()) {
      const ms = (at_ms[i + 1] ?? fromMs) - fromMs;
      const added = (tokens[i + 1] ?? 0) - (tokens[i] ?? 0);
      if (ms > 0 && added > 0) rates.add(fromMs, fromMs + ms, (1000 * added) / ms);
    }
  }
  return rates.sums.map(Math.round);
}

function laneOf(
  { name, at_ms, running, kv_tokens_used, kv_tokens, recomputing_ms }: Timeline["workers"][number],
  about: { busy: [number, number][]; wallMs: number; runningMax: number },
): EngineLane {
  const { busy, wallMs, runningMax } = about;
  const idle = new Shares(wallMs);
  let freeMs = 0;
  for (const [startMs, endMs] of busy.sort(([a], [b]) => a - b)) {
    if (startMs > freeMs) idle.add(freeMs, startMs, 1);
    freeMs = Math.max(freeMs, endMs);
  }
  idle.add(freeMs, wallMs, 1);
  const recomputing = new Shares(wallMs);
  const load = new Shares(wallMs);
  const kv = new Shares(wallMs);
  for (const [i, fromMs] of at_ms.entries()) {
    const toMs = at_ms[i + 1] ?? wallMs;
    load.add(fromMs, toMs, (running[i] ?? 0) / runningMax);
    kv.add(fromMs, toMs, (kv_tokens_used[i] ?? 0) / Math.max(1, kv_tokens));
    // What was counted at the next sample was done before it.
    const againMs = (recomputing_ms[i + 1] ?? 0) - (recomputing_ms[i] ?? 0);
    if (againMs > 0 && toMs > fromMs) recomputing.add(fromMs, toMs, againMs / (toMs - fromMs));
  }
  return {
    name,
    idle: idle.mean,
    recomputing: recomputing.mean,
    over_time: {
      idle: idle.columns,
      recomputing: recomputing.columns,
      running: load.columns,
      kv: kv.columns,
    },
  };
}

/** Means of a value over equal parts of a run's time. */
class Shares {
  readonly #columnMs: number;
  readonly #sums = new Float64Array(COLUMNS);

  constructor(wallMs: number) {
    this.#columnMs = wallMs / COLUMNS;
  }

  /** Adds `share` to the value between the two times. */
  add(fromMs: number, toMs: number, share: number): void {
    const from = Math.max(0, fromMs / this.#columnMs);
    const to = Math.min(COLUMNS, toMs / this.#columnMs);
    for (let i = Math.floor(from); i < to; i += 1) {
      const part = Math.min(to, i + 1) - Math.max(from, i);
      this.#sums[i] = (this.#sums[i] ?? 0) + part * share;
    }
  }

  get sums(): number[] {
    return [...this.#sums];
  }

  get columns(): Column {
    // Two decimals: a page holds them as JSON.
    return this.sums.map((sum) => Math.round(100 * Math.min(1, sum)) / 100);
  }

  get mean(): number {
    return rounded(this.#sums.reduce((total, sum) => total + Math.min(1, sum), 0) / COLUMNS);
  }
}

function longestGroup({ responses, workers }: MeasuredRun["timeline"]): RunFigure["longest"] {
  const groups = Map.groupBy(responses, ({ group }) => group);
  const tokensOf = (of: readonly ResponseTimeline[]) =>
    of.reduce((sum, { tokens }) => sum + tokens, 0);
  const [first, ...others] = [...groups.values()];
  if (first === undefined) return null;
  const longest = others.reduce((most, of) => (tokensOf(of) > tokensOf(most) ? of : most), first);
  const engines = new Map(workers.map(({ worker }, i) => [worker, i]));
  const sorted = longest.toSorted((a, b) => b.tokens - a.tokens || a.index - b.index);
  return {
    group: longest[0]?.group ?? "",
    size: longest.length,
    responses: sorted.slice(0, BARS_MAX).map((response) => barOf(response, engines)),
  };
}

function barOf(response: ResponseTimeline, engines: ReadonlyMap<number, number>): ResponseBar {
  const { index, tokens, chunks, joined_ms, end_ms } = response;
  const pieces: [number, number, number][] = [];
  let moves = 0;
  for (const [worker, startMs, endMs, firstTokenMs] of chunks) {
    // Before its first token a chunk waits in the engine's own queue, or is prefilled.
    const from = rounded((firstTokenMs ?? startMs) / 1000);
    const to = rounded((endMs ?? end_ms ?? startMs) / 1000);
    const engine = engines.get(worker) ?? 0;
    const last = pieces.at(-1);
    if (last !== undefined && last[0] !== engine) moves += 1;
    if (last?.[0] === engine && from - last[2] < JOINED_S) last[2] = to;
    else pieces.push([engine, from, to]);
  }
  const joined_s = rounded(joined_ms / 1000);
  return { index, tokens, joined_s, end_s: pieces.at(-1)?.[2] ?? joined_s, moves, pieces };
}

function rounded(value: number): number {
  return Math.round(value * 1000) / 1000;
}
