// Keeps what the charts of a simulation show: KV use and running requests of every engine over time, thinned so that
// a run of any length takes the same room.

import type { EngineSeries } from "../picture/charts.ts";
import type { ModelledEngine } from "./engine.ts";

export interface Series {
  readonly engines: readonly EngineSeries[];
}

const POINTS_MAX = 1500;

export class Recorder {
  readonly #engines: { atS: number[]; kvShare: number[]; running: number[] }[];
  readonly #gapS: Float64Array;

  constructor(engines: number) {
    this.#gapS = new Float64Array(engines);
    this.#engines = Array.from({ length: engines }, () => ({ atS: [], kvShare: [], running: [] }));
  }

  sample(nowMs: number, engine: ModelledEngine): void {
    const into = this.#engines[engine.workerId];
    if (into === undefined) return;
    const atS = nowMs / 1000;
    const last = into.atS.at(-1);
    const isEnd = engine.running.length === 0;
    const gapS = this.#gapS[engine.workerId] ?? 0;
    if (last !== undefined && atS - last < gapS && !isEnd) return;
    into.atS.push(atS);
    into.kvShare.push(engine.kvUsed / engine.kvTokens);
    into.running.push(engine.running.length);
    if (into.atS.length < POINTS_MAX) return;
    this.#gapS[engine.workerId] = (2 * atS) / POINTS_MAX;
    for (const values of [into.atS, into.kvShare, into.running]) thin(values);
  }

  get series(): Series {
    return { engines: this.#engines };
  }
}

/** Keeps every second value, in place. */
function thin(values: number[]): void {
  const kept = values.length >> 1;
  for (let i = 0; i < kept; i += 1) values[i] = values[2 * i + 1] ?? 0;
  values.length = kept;
}
