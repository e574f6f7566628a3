// The time between a session's turns, which is a tool's time in most cases: gaps are log-normal, each tool's with its own
// mean and deviation where requests name tools. KV of a paused session is kept by it.
// KV of a pause is kept while the pause is expected to end before that has cost more than computing it (`sessions.ts`).

/** Gaps that count: those before fade. And at least, before they do. */
const GAPS_KEPT = 64;
const GAPS_KNOWN = 4;
/** Gaps of all tools that a tool's own begin with. */
const GAPS_PRIOR = 4;
const TOOLS_MAX = 256;
/** Deviations from the mean of the logarithms at which a pause may be given up. */
const DEVIATIONS = Array.from({ length: 25 }, (_, i) => (i - 12) / 4);
const VARIANCE_MIN = 0.01;

interface Pause {
  readonly worthMs: number;
  readonly backPart: number;
  readonly tool: string | null;
}

/** Mean and variance of the logarithms of gaps, in ms. */
interface Gaps {
  count: number;
  mean: number;
  variance: number;
}

export class Returns {
  readonly #all: Gaps = noGaps();
  readonly #tools = new Map<string, Gaps>();

  /** A session has come back after so long, in which the tool ran; null: not known. */
  came(gapMs: number, tool: string | null): void {
    const log = Math.log(Math.max(1, gapMs));
    observe(this.#all, log);
    if (tool === null) return;
    const known = this.#tools.get(tool);
    if (known === undefined && this.#tools.size >= TOOLS_MAX) return;
    const gaps = known ?? noGaps();
    this.#tools.set(tool, gaps);
    observe(gaps, log);
  }

  /**
   * How long a pause in which the tool runs may last before its KV goes to others. `worthMs`: the time for which keeping
   * costs as much as computing it again. `backPart`: the part of pauses that end.
   */
  keepMs({ worthMs, backPart, tool }: Pause): number {
    if (this.#all.count < GAPS_KNOWN) return backPart * worthMs;
    const endsPart = (1 - backPart) / backPart;
    const { mean, variance } = this.#of(tool);
    const deviation = Math.sqrt(variance);
    const gapMs = Math.exp(mean + variance / 2);
    let bestMs = 0;
    let least = worthMs;
    for (const z of DEVIATIONS) {
      const keptMs = Math.exp(mean + z * deviation);
      const isAway = 1 - normalCdf(z);
      const cost =
        gapMs * normalCdf(z - deviation) + isAway * (keptMs + worthMs) + endsPart * keptMs;
      if (cost > least) continue;
      least = cost;
      bestMs = keptMs;
    }
    return Math.min(bestMs, worthMs);
  }

  #of(tool: string | null): Gaps {
    const all = this.#all;
    const own = (tool === null ? null : this.#tools.get(tool)) ?? noGaps();
    const part = own.count / (own.count + GAPS_PRIOR);
    const mean = all.mean + part * (own.mean - all.mean);
    const variance = all.variance + part * (own.variance - all.variance);
    return { count: own.count, mean, variance: Math.max(VARIANCE_MIN, variance) };
  }
}

function noGaps(): Gaps {
  return { count: 0, mean: 0, variance: 0 };
}

function observe(gaps: Gaps, log: number): void {
  gaps.count = Math.min(GAPS_KEPT, gaps.count + 1);
  const away = log - gaps.mean;
  gaps.mean += away / gaps.count;
  gaps.variance += (away * (log - gaps.mean) - gaps.variance) / gaps.count;
}

/** The logistic curve that is nearest to it: at most 0.01 off. */
function normalCdf(z: number): number {
  return 1 / (1 + Math.exp(-1.702 * z));
}
