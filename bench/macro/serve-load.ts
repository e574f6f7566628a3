// What the processes of the serve bench have in common: the load they are put under, its pace, and what it cost.

/** all: one client follows everything. groups: a thousand clients, one group each. */
export const MODES = ["all", "groups", "sse", "proxy"] as const;
export type Mode = (typeof MODES)[number];

export interface Load {
  readonly mode: Mode;
  readonly seconds: number;
  /** Tokens of a request in a step. */
  readonly stepTokens: number;
  /** Rate over all workers, whose steps are spread evenly; null: unlimited. */
  readonly tokensPerS: number | null;
}

export interface Ran {
  readonly tokensOut: number;
  readonly cpuUs: number;
  /** Rate in the fastest slice: other work on the same cores slows the others down. */
  readonly tokensPerCpuSBest: number;
  readonly seconds: number;
  /** Half way and at the end. */
  readonly rssMib: readonly [number, number];
}

export type Order =
  | { kind: "fill"; requests: number }
  | { kind: "ready"; count: number }
  | { kind: "run"; load: Load };

export const WORKERS = 8;
export const GROUP_SIZE = 16;
export const STAMP_MASK = 0x3fffffff;

/** When a token was made, in units of 10 microseconds, 30 bits of it. */
export const stamp = () =>
  Math.floor((performance.timeOrigin + performance.now()) * 100) % (STAMP_MASK + 1);
export const turn = () => new Promise<void>((resolve) => setImmediate(resolve));

/** CPU time of a slice: long enough for a few collections of garbage. */
const SLICE_CPU_US = 250_000;

function cpuUs(): number {
  const { user, system } = process.cpuUsage();
  return user + system;
}

/** Steps for a while. `act`: makes step number `step`, and returns its tokens. */
export async function run(
  load: Load,
  act: (step: number, stepTokens: number) => Promise<number>,
): Promise<Ran> {
  const startMs = performance.now();
  const startUs = cpuUs();
  const lengthMs = load.seconds * 1000;
  let [tokensOut, steps, rssHalf, best] = [0, 0, 0, 0];
  let slice = { tokens: 0, us: startUs };
  for (;;) {
    const elapsedMs = performance.now() - startMs;
    if (elapsedMs >= lengthMs) break;
    if (rssHalf === 0 && elapsedMs > lengthMs / 2) rssHalf = process.memoryUsage.rss();
    // The generated tokens show how far it is ahead.
    const dueMs = load.tokensPerS === null ? 0 : (tokensOut * 1000) / load.tokensPerS;
    if (dueMs > elapsedMs) await Bun.sleep(dueMs - elapsedMs);
    tokensOut += await act(steps, load.stepTokens);
    steps += 1;
    const sliceUs = cpuUs() - slice.us;
    if (sliceUs < SLICE_CPU_US) continue;
    best = Math.max(best, ((tokensOut - slice.tokens) * 1e6) / sliceUs);
    slice = { tokens: tokensOut, us: slice.us + sliceUs };
  }
  const mib = (bytes: number) => bytes / 2 ** 20;
  return {
    tokensOut,
    cpuUs: cpuUs() - startUs,
    tokensPerCpuSBest: best,
    seconds: (performance.now() - startMs) / 1000,
    rssMib: [mib(rssHalf), mib(process.memoryUsage.rss())],
  };
}
