// Whether engines draw tokens as often as they report them to be probable, from what clients' requests bring anyway.
// Two siblings x and y that have the same text so far draw their next tokens from one distribution p, so they draw the
// same one with probability sum p^2, which is also the expectation of p(x), and of p(y). The difference
// [x = y] - (p(x) + p(y)) / 2 is 0 on average, at every position up to the first at which they differ. A sampler
// that keeps wrong drafts, or draws at another temperature than it reports, shifts it. Where both drew the same token,
// both engines must report the same probability. Docs: OPERATIONS.md.

import { Counter, type Registry } from "prom-client";
import type { Request } from "../../core/request/buffer.ts";
import type { SamplingParams } from "../../core/request/request.ts";

/** Of one pair of siblings: siblings that agree for long tell little more, and this bounds the work. */
const POSITIONS_MAX = 32;

/** What one pair of siblings adds. */
export interface PairFigures {
  positions: number;
  /** Positions at which both drew the same token, and how many there should be. */
  same: number;
  expected: number;
  /** Sum of the squared differences: the variance of `same - expected`, as that of a martingale. */
  variance: number;
  /** Of the log probabilities reported for the same token, absolute, in nats. */
  logprobDifference: number;
}

/** `logprobs[i]` is that of `tokens[i]`; both sequences follow the same text. */
export function compareSiblings(
  [tokens, logprobs]: readonly [Int32Array, Float32Array],
  [otherTokens, otherLogprobs]: readonly [Int32Array, Float32Array],
): PairFigures {
  const figures = { positions: 0, same: 0, expected: 0, variance: 0, logprobDifference: 0 };
  const end = Math.min(POSITIONS_MAX, tokens.length, otherTokens.length);
  for (let i = 0; i < end; i += 1) {
    const [a, b] = [logprobs[i] ?? Number.NaN, otherLogprobs[i] ?? Number.NaN];
    if (!Number.isFinite(a) || !Number.isFinite(b)) break;
    const expected = (Math.exp(a) + Math.exp(b)) / 2;
    const isSame = tokens[i] === otherTokens[i];
    figures.positions += 1;
    figures.same += Number(isSame);
    figures.expected += expected;
    figures.variance += (Number(isSame) - expected) ** 2;
    if (!isSame) break;
    figures.logprobDifference += Math.abs(a - b);
  }
  return figures;
}

const COUNTERS = [
  [
    "foretoken_sampling_positions_total",
    "Positions at which two siblings with the same text drew a token each.",
    (figures) => figures.positions,
  ],
  [
    "foretoken_sampling_same_total",
    "Of them, those at which both drew the same token.",
    (figures) => figures.same,
  ],
  [
    "foretoken_sampling_same_expected_total",
    "As many as that should be by the probabilities that the engines report.",
    (figures) => figures.expected,
  ],
  [
    "foretoken_sampling_same_variance_total",
    "Variance of the difference of the two.",
    (figures) => figures.variance,
  ],
  [
    "foretoken_sampling_logprob_difference_total",
    "Differences of what two engines report for the same token after the same text, in nats.",
    (figures) => figures.logprobDifference,
  ],
] as const satisfies readonly (readonly [string, string, (figures: PairFigures) => number])[];

/** Counts by the engine of the first chunk. A pair counts for both of its engines. */
export class SamplingDrift {
  readonly #counters: readonly (readonly [Counter, (figures: PairFigures) => number])[];
  readonly #engineName: (worker: number) => string;

  constructor(registry: Registry, engineName: (worker: number) => string) {
    this.#engineName = engineName;
    this.#counters = COUNTERS.map(([name, help, value]) => [
      new Counter({ name, help, labelNames: ["engine"], registers: [registry] }),
      value,
    ]);
  }

  /** The response has finished. Pairs are fixed by their indexes: which ones finish first depends on what they drew. */
  finished(request: Request): void {
    const other = request.group.requests[request.spec.sampleIndex ^ 1];
    if (other?.status !== "finished" || other.spec.prompt !== request.spec.prompt) return;
    if (isSameDraw(request, other)) return;
    const [own, theirs] = [firstChunk(request), firstChunk(other)];
    if (own === null || theirs === null || own.epoch !== theirs.epoch) return;
    const figures = compareSiblings(own.columns, theirs.columns);
    for (const worker of new Set([own.worker, theirs.worker])) {
      const engine = this.#engineName(worker);
      for (const [counter, value] of this.#counters) counter.inc({ engine }, value(figures));
    }
  }
}

/** Two requests with one seed: the same random numbers draw the same tokens. */
function isSameDraw({ spec: { draw } }: Request, { spec: { draw: other } }: Request): boolean {
  return draw.hi === other.hi && draw.lo === other.lo;
}

/** null: its tokens were not drawn from the distribution that its logprobs are of, or it was given up. */
function firstChunk({ spec, response }: Request) {
  const [chunk] = response.chunks;
  if (chunk === undefined || response.finish === "abort" || !isPlain(spec.sampling)) return null;
  const end = Math.min(chunk.tokens, POSITIONS_MAX);
  const columns = [
    response.tokens().subarray(0, end),
    response.logprobs().subarray(0, end),
  ] as const;
  return { worker: chunk.workerId, epoch: chunk.epoch, columns };
}

/** Servers report logprobs of the distribution before temperature and filters (vLLM's default). */
function isPlain({ temperature, shaping, engineFields }: SamplingParams): boolean {
  if (temperature !== 1 || engineFields !== null) return false;
  if (shaping === null) return true;
  const { topK, topP, minP, repetitionPenalty, presencePenalty, frequencyPenalty } = shaping;
  const isFiltered = topK !== 0 || topP !== 1 || minP !== 0 || shaping.tokensMin > 0;
  const isPenalized = repetitionPenalty !== 1 || presencePenalty !== 0 || frequencyPenalty !== 0;
  return !isFiltered && !isPenalized && shaping.logitBias.length === 0;
}
