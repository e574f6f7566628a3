// How fast each engine steps, compared with the others: the time of a step is pace * (base + row * rows), with one base
// and one row for all engines. It is learnt from spans of a few seconds. Other load on a machine lengthens some spans, and drafts or
// long contexts change all of them: so everything is a median or a fit by least absolute deviations, and an engine
// counts as slow only if nearly all its spans say so. The plugin's fit (step_time.py) knows its own engine alone; this one
// needs only counts that every engine reports. A guess in its place calls a slow engine with few requests 8 times slower, not 3.

import type { WorkerId } from "../base/ids.ts";
import { quantileOf, selectQuantile } from "../base/quantile.ts";

/** Work of an engine in some seconds. */
export interface Span {
  /** Time in which it ran requests, ms. */
  readonly busyMs: number;
  /** The same, summed over its requests. */
  readonly requestMs: number;
  /** Steps, summed over the requests that took part: tokens without accepted drafts. */
  readonly steps: number;
  /** Draft tokens verified; and tokens that passed through prefill. */
  readonly drafted: number;
  readonly prefilled: number;
}

/** Spans of an engine that count; and without which it has no pace. */
const SPANS_KEPT = 16;
const SPANS_KNOWN = 6;
/** An engine's pace is 1 unless three quarters of its spans are this much above or below the median engine. */
const BAND = 1.3;
/** An engine keeps its pace while the last fit differs by less: each change moves requests. */
const CHANGE = 1.1;
const ITERATIONS = 4;
/** Relative deviations below this are noise, which counts as if squared. */
const DEVIATION = 0.02;
/** Weight of the guess that half of a typical step does not depend on its rows, as a part of all spans. */
const PRIOR = 0.02;

interface Engine {
  /** Rows of a step, and its time in ms, in spans of late; two rings. */
  readonly rows: number[];
  readonly ms: number[];
  next: number;
  /** Rows of a step for each request, of late. */
  rowsPerRequest: number;
  /** As fitted; and as it counts. */
  fitted: number;
  pace: number;
}

const unseen = (): Engine => ({ rows: [], ms: [], next: 0, rowsPerRequest: 1, fitted: 1, pace: 1 });

/** Columns of all spans, by engine; `ratios`: times over those with pace 1, in any order within an engine. */
interface Spans {
  readonly engines: readonly Engine[];
  readonly rows: Float64Array;
  readonly typicalRows: number;
  readonly ms: Float64Array;
  readonly ratios: Float64Array;
}

export class Paces {
  readonly #engines = new Map<WorkerId, Engine>();
  #base = 0;
  #row = 1;
  #fresh = 0;
  /** Median deviation of spans from their expected times, relative to these. 0: not known. */
  error = 0;

  /** Step time of the engine over that of the median engine with as many rows; 1: not known to differ. */
  of(id: WorkerId): number {
    return this.#engines.get(id)?.pace ?? 1;
  }

  /** The part of a step that does not depend on its requests, as the number of requests that take as long. */
  baseRequests(id: WorkerId): number {
    const rows = this.#engines.get(id)?.rowsPerRequest ?? 1;
    return this.#row === 0 ? Number.MAX_SAFE_INTEGER : this.#base / (this.#row * rows);
  }

  /** As `baseRequests`, of plain steps and all engines; a huge number: not known. */
  get base(): number {
    return this.error === 0 || this.#row === 0 ? Number.MAX_SAFE_INTEGER : this.#base / this.#row;
  }

  /** Time of a step of the engine that decodes so many requests, ms; null: not known. */
  stepMs(id: WorkerId, requests: number): number | null {
    const engine = this.#engines.get(id);
    if (this.error === 0 || engine === undefined) return null;
    return engine.pace * (this.#base + this.#row * requests * engine.rowsPerRequest);
  }

  /** Time of a row of the engine's steps, ms; NaN: not known. */
  rowMs(id: WorkerId): number {
    return this.error === 0 ? Number.NaN : this.#row * this.of(id);
  }

  /** true: paces may have changed; false: only what is known of this engine's rows. */
  observe(id: WorkerId, { busyMs, requestMs, steps, drafted, prefilled }: Span): boolean {
    const engine = this.#engines.getOrInsertComputed(id, unseen);
    const requests = requestMs / busyMs;
    engine.rowsPerRequest = 1 + drafted / steps;
    const rowsPerToken = engine.rowsPerRequest + prefilled / steps;
    engine.rows[engine.next] = requests * rowsPerToken;
    engine.ms[engine.next] = requestMs / steps;
    engine.next = (engine.next + 1) % SPANS_KEPT;
    this.#fresh += 1;
    // A span of each engine between two fits: linear in the number of engines for each of them.
    if (this.#fresh < this.#engines.size) return false;
    this.#fresh = 0;
    this.#learn();
    return true;
  }

  forget(id: WorkerId): void {
    this.#engines.delete(id);
    this.#learn();
  }

  #learn(): void {
    const engines = [...this.#engines.values()].filter(({ ms }) => ms.length >= SPANS_KNOWN);
    if (engines.length === 0) return;
    const rows = Float64Array.from(engines.flatMap((engine) => engine.rows));
    const ms = new Float64Array(rows.length);
    const ratios = new Float64Array(rows.length);
    const spans = { engines, rows, typicalRows: quantileOf(rows, 1 / 2) ?? 1, ms, ratios };
    // What rows can explain is no matter of pace.
    for (const engine of engines) engine.fitted = 1;
    for (let i = 0; i < ITERATIONS; i += 1) this.#fit(spans);
    // Of two, the faster one: most engines are as fast as they should be.
    const fitted = Float64Array.from(engines, (engine) => engine.fitted);
    judge(spans, selectQuantile(fitted, (engines.length - 1) / 2 / engines.length) ?? 1);
    this.error = selectQuantile(ms, 1 / 2) ?? 1;
  }

  /** Base and row by iteratively reweighted least squares of relative deviations, neither below zero; and by these, paces. */
  #fit({ engines, rows, typicalRows, ms: all, ratios }: Spans): void {
    let at = 0;
    for (const { ms, fitted } of engines) {
      for (let k = 0; k < ms.length; k += 1, at += 1) all[at] = (ms[k] as number) / fitted;
    }
    const typicalMs = quantileOf(all, 1 / 2) ?? 1;
    const base = this.#base;
    const row = this.#row;
    let bb = 0;
    let br = 0;
    let rr = 0;
    let b = 0;
    let r = 0;
    let total = 0;
    for (let i = 0; i < at; i += 1) {
      const own = rows[i] as number;
      const ms = all[i] as number;
      const deviation = Math.abs(1 - (base + row * own) / ms);
      // Without an earlier fit all count alike.
      const weight = this.error === 0 ? 1 : 1 / Math.max(deviation, DEVIATION);
      const x = 1 / ms;
      const y = own / ms;
      bb += weight * x * x;
      br += weight * x * y;
      rr += weight * y * y;
      b += weight * x;
      r += weight * y;
      total += weight;
    }
    const prior = (PRIOR * total) / typicalMs ** 2;
    bb += prior;
    br -= prior * typicalRows;
    rr += prior * typicalRows ** 2;
    const determinant = bb * rr - br * br;
    this.#base = (b * rr - r * br) / determinant;
    this.#row = (r * bb - b * br) / determinant;
    if (this.#base < 0) [this.#base, this.#row] = [0, r / rr];
    else if (this.#row < 0) [this.#base, this.#row] = [b / bb, 0];
    at = 0;
    for (const engine of engines) {
      const from = at;
      for (let k = 0; k < engine.ms.length; k += 1, at += 1) {
        ratios[at] = (engine.ms[k] as number) / (this.#base + this.#row * (rows[at] as number));
      }
      engine.fitted = selectQuantile(ratios, 1 / 2, from, at) ?? 1;
    }
  }
}

/** Sets the paces that count, and `ms` to the deviations. */
function judge({ engines, ratios, ms }: Spans, median: number): void {
  let from = 0;
  for (const engine of engines) {
    const end = from + engine.ms.length;
    const isSlow = (selectQuantile(ratios, 1 / 4, from, end) ?? 1) / median > BAND;
    const isFast = (selectQuantile(ratios, 3 / 4, from, end) ?? 1) / median < 1 / BAND;
    const pace = isSlow || isFast ? engine.fitted / median : 1;
    const change = Math.max(pace / engine.pace, engine.pace / pace);
    if (pace === 1 || change > CHANGE) engine.pace = pace;
    for (; from < end; from += 1) ms[from] = Math.abs((ratios[from] as number) / engine.fitted - 1);
  }
}
