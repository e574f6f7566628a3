// Virtual time for a whole process: timers, clocks and turns of the event loop come from one timeline. What is due runs in
// order, and everything that follows from it without a timer has happened before the next. Processes that begin meanwhile
// cost little: one instance of the core serves many of them, and none looks at the heap or the CPU time of the real one.

import v8 from "node:v8";
import { Timeline } from "./timeline.ts";

interface Timer {
  readonly act: () => void;
  /** See `abandon`; null: it belongs to nobody, and always fires. */
  readonly owner: number | null;
  isOver: boolean;
}

const { setTimeout, clearTimeout, setInterval, clearInterval, setImmediate } = globalThis;
const now = performance.now.bind(performance);
const dateNow = Date.now;
const { Instance } = WebAssembly;
const { getHeapSpaceStatistics } = v8;
const { cpuUsage } = process;
const START_S = 1_700_000_000;
/** Heaps of processes that are over stay in their instance. */
const STARTS_PER_CORE = 1_000;
let core: WebAssembly.Instance | null = null;
let starts = 0;

/** In place of WebAssembly.Instance. */
function sharedInstance(module: WebAssembly.Module, imports: Bun.WebAssembly.Imports) {
  if (core === null || starts % STARTS_PER_CORE === 0) core = new Instance(module, imports);
  starts += 1;
  return core;
}

export class VirtualTime {
  nowMs = 0;
  readonly #timeline = new Timeline<Timer>();
  #owner = 0;

  /** Until `end` the process's own timers and clocks are these. */
  begin(): void {
    // With their arguments: sockets of other tests in this process set timers, too.
    const timeout = <T extends unknown[]>(act: (...own: T) => void, ms = 0, ...own: T) =>
      this.#add(() => act(...own), ms, this.#owner);
    const immediate = <T extends unknown[]>(act: (...own: T) => void, ...own: T) =>
      timeout(act, 0, ...own);
    const interval = (act: () => void, ms = 0): Timer => {
      const again = () => {
        act();
        if (!timer.isOver) this.#put(timer, ms);
      };
      const timer: Timer = { act: again, owner: this.#owner, isOver: false };
      return this.#put(timer, ms);
    };
    const clear = (timer?: Timer) => {
      if (timer !== undefined) timer.isOver = true;
    };
    Object.assign(globalThis, {
      ...{ setTimeout: timeout, setInterval: interval, setImmediate: immediate },
      ...{ clearTimeout: clear, clearInterval: clear },
    });
    WebAssembly.Instance = sharedInstance as unknown as typeof Instance;
    v8.getHeapSpaceStatistics = () => [];
    process.cpuUsage = () => ({ user: 0, system: 0 });
    performance.now = () => this.nowMs;
    Date.now = () => START_S * 1000 + this.nowMs;
  }

  end(): void {
    const own = { setTimeout, clearTimeout, setInterval, clearInterval, setImmediate };
    Object.assign(globalThis, own);
    WebAssembly.Instance = Instance;
    v8.getHeapSpaceStatistics = getHeapSpaceStatistics;
    process.cpuUsage = cpuUsage;
    performance.now = now;
    Date.now = dateNow;
  }

  /** A timer of the simulation itself, not of the process that it simulates. */
  after(ms: number, act: () => void): void {
    this.#add(act, ms, null);
  }

  sleep(ms: number): Promise<void> {
    return new Promise((resolve) => this.after(ms, resolve));
  }

  /** The simulated process has died: none of its timers fires any more. */
  abandon(): void {
    this.#owner += 1;
  }

  /** Runs what is due next, and what follows from it. false: nothing is due. */
  async next(): Promise<boolean> {
    let timer = this.#take();
    while (timer !== null && this.#isDead(timer)) timer = this.#take();
    if (timer === null) return false;
    timer.act();
    await new Promise<void>((resolve) => {
      setImmediate(resolve);
    });
    return true;
  }

  #take(): Timer | null {
    const atMs = this.#timeline.nextMs;
    if (Number.isFinite(atMs)) this.nowMs = atMs;
    return this.#timeline.take();
  }

  #isDead({ isOver, owner }: Timer): boolean {
    return isOver || (owner !== null && owner !== this.#owner);
  }

  #add(act: () => void, ms: number, owner: number | null): Timer {
    return this.#put({ act, owner, isOver: false }, ms);
  }

  #put(timer: Timer, ms: number): Timer {
    this.#timeline.add(this.nowMs + Math.max(0, ms), timer);
    return Object.assign(timer, { unref: () => timer, ref: () => timer });
  }
}
