// Keeps what the charts of a simulation show: KV use and running requests of every engine over time, thinned so that
// a run of any length takes the same room.

import type { ModelledEngine } from "./engine.ts";

export interface Series {
  readonly instances: readonly InstanceSeries[];
}

/** Parallel arrays, ascending in time. */
export interface InstanceSeries {
  readonly atS: number[];
  readonly kvShare: number[];
  readonly running: number[];
  readonly waiting: number[];
}

const POINTS_MAX = 1500;

export class Recorder {
  readonly #instances: InstanceSeries[];
  readonly #gapS: Float64Array;

  constructor(instances: number) {
    this.#gapS = new Float64Array(instances);
    this.#instances = Array.from({ length: instances }, () => ({
      atS: [],
      kvShare: [],
      running: [],
      waiting: [],
    }));
  }

  sample(nowMs: number, engine: ModelledEngine): void {
    const into = this.#instances[engine.workerId];
    if (into === undefined) return;
    const atS = nowMs / 1000;
    const last = into.atS.at(-1);
    const isEnd = engine.running.length === 0;
    const gapS = this.#gapS[engine.workerId] ?? 0;
    if (last !== undefined && atS - last < gapS && !isEnd) return;
    into.atS.push(atS);
    into.kvShare.push(engine.kvUsed / engine.kvTokens);
    into.running.push(engine.running.length);
    into.waiting.push(engine.waitingCount);
    if (into.atS.length < POINTS_MAX) return;
    this.#gapS[engine.workerId] = (2 * atS) / POINTS_MAX;
    for (const values of [into.atS, into.kvShare, into.running, into.waiting]) thin(values);
  }

  get series(): Series {
    return { instances: this.#instances };
  }
}

/** Keeps every second value, in place. */
function thin(values: number[]): void {
  const kept = values.length >> 1;
  for (let i = 0; i < kept; i += 1) values[i] = values[2 * i + 1] ?? 0;
  values.length = kept;
}
