// Finds inputs that have hung, on a machine that may be busy with something else: time for which the watched process
// stood in line for a core is not counted. A loop without end uses CPU time, a wait without end does not stand in line, and a
// process that got no core has done neither.

import { readdirSync, readFileSync } from "node:fs";

/** Since some moment, in ms. */
export interface Times {
  readonly wallMs: number;
  /** Of the main thread. */
  readonly cpuMs: number;
  /** For which threads were ready to run and had no core. */
  readonly queuedMs: number;
}

interface Begun {
  readonly sinceMs: number;
  readonly times: Times;
}

/** Of the time from one moment to the other, the part that the process had for itself. */
function ownMs(from: Times, to: Times): number {
  const unqueuedMs = to.wallMs - from.wallMs - (to.queuedMs - from.queuedMs);
  return Math.max(to.cpuMs - from.cpuMs, unqueuedMs);
}

export class Watchdog {
  readonly #hangMs: number;
  /** By the input's index: when it was first seen. */
  #begun = new Map<number, Begun>();

  constructor(hangMs: number) {
    this.#hangMs = hangMs;
  }

  /** Called again and again with the inputs that run. Returns the indices of those that have hung. */
  look(running: readonly { index: number; sinceMs: number }[], times: Times): number[] {
    const before = this.#begun;
    this.#begun = new Map();
    const hung: number[] = [];
    for (const { index, sinceMs } of running) {
      const known = before.get(index);
      const begun = known?.sinceMs === sinceMs ? known : { sinceMs, times };
      this.#begun.set(index, begun);
      if (ownMs(begun.times, times) > this.#hangMs) hung.push(index);
    }
    return hung;
  }
}

/** Reads the times of a process. */
export class ProcessTimes {
  readonly #pid: number;
  /** By thread, also of those that have ended. */
  readonly #queuedNs = new Map<string, number>();

  constructor(pid: number) {
    this.#pid = pid;
  }

  /** Where the system does not give them, wall time alone. */
  read(): Times {
    const wallMs = performance.now();
    let cpuNs = 0;
    for (const thread of this.#threads()) {
      const [ran = 0, queued = 0] = this.#schedulingOf(thread);
      if (thread === String(this.#pid)) cpuNs = ran;
      this.#queuedNs.set(thread, queued);
    }
    let queuedNs = 0;
    for (const ns of this.#queuedNs.values()) queuedNs += ns;
    return { wallMs, cpuMs: cpuNs / 1e6, queuedMs: queuedNs / 1e6 };
  }

  #threads(): string[] {
    try {
      return readdirSync(`/proc/${this.#pid}/task`);
    } catch {
      return [];
    }
  }

  /** See proc(5): nanoseconds on a core, nanoseconds in line for one. */
  #schedulingOf(thread: string): number[] {
    try {
      const text = readFileSync(`/proc/${this.#pid}/task/${thread}/schedstat`, "utf8");
      return text.split(" ").map(Number);
    } catch {
      return [];
    }
  }
}
