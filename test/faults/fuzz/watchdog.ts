// Finds inputs that have hung, on a machine that may be busy with something else: time for which the watched process
// stood in line for a core is not counted. A loop without end uses CPU time, a wait without end does not stand in line, and
// a process that got no core has done neither.

import { readFileSync } from "node:fs";

/** Times since some moment, in ms. */
export interface Times {
  readonly wallMs: number;
  /** CPU time of the main thread. */
  readonly cpuMs: number;
  /** Time for which the main thread was ready to run and had no core. */
  readonly queuedMs: number;
}

export class Watchdog {
  readonly #hangMs: number;
  /** First sight of each running input, by its index. */
  #begun = new Map<number, { sinceMs: number; times: Times }>();

  constructor(hangMs: number) {
    this.#hangMs = hangMs;
  }

  /** Called again and again with the inputs that run. Returns the indices of those that have hung. */
  look(running: readonly { index: number; sinceMs: number }[], times: Times): number[] {
    const before = this.#begun;
    this.#begun = new Map();
    return running.flatMap(({ index, sinceMs }) => {
      const known = before.get(index);
      const begun = known?.sinceMs === sinceMs ? known : { sinceMs, times };
      this.#begun.set(index, begun);
      const queuedMs = times.queuedMs - begun.times.queuedMs;
      return times.wallMs - begun.times.wallMs - queuedMs > this.#hangMs ? [index] : [];
    });
  }
}

/** Times of a process, by proc(5): nanoseconds on a core, nanoseconds in line for one. Without it wall time alone. */
export function timesOf(pid: number): Times {
  const wallMs = performance.now();
  try {
    const text = readFileSync(`/proc/${pid}/schedstat`, "utf8");
    const [ran = 0, queued = 0] = text.split(" ").map(Number);
    return { wallMs, cpuMs: ran / 1e6, queuedMs: queued / 1e6 };
  } catch {
    return { wallMs, cpuMs: 0, queuedMs: 0 };
  }
}
