// What the processes of the serve bench have in common: the load they are put under, its pace, and what it cost.

/** sse: streams of the sidecar. proxy: the same bytes through a plain reverse proxy. */
export const MODES = ["sse", "proxy"] as const;
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
  readonly seconds: number;
}

export type Order = { kind: "ready"; count: number } | { kind: "run"; load: Load };

export const WORKERS = 8;
export const GROUP_SIZE = 16;
export const STAMP_MASK = 0x3fffffff;

/** When a token was made, in units of 10 microseconds, 30 bits of it. */
export const stamp = () =>
  Math.floor((performance.timeOrigin + performance.now()) * 100) % (STAMP_MASK + 1);
export const turn = () => new Promise<void>((resolve) => setImmediate(resolve));

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
  let [tokensOut, steps] = [0, 0];
  for (;;) {
    const elapsedMs = performance.now() - startMs;
    if (elapsedMs >= lengthMs) break;
    // The generated tokens show how far it is ahead.
    const dueMs = load.tokensPerS === null ? 0 : (tokensOut * 1000) / load.tokensPerS;
    if (dueMs > elapsedMs) await Bun.sleep(dueMs - elapsedMs);
    tokensOut += await act(steps, load.stepTokens);
    steps += 1;
  }
  return {
    tokensOut,
    cpuUs: cpuUs() - startUs,
    seconds: (performance.now() - startMs) / 1000,
  };
}
