// Whether an engine with drafts still draws from the distribution that it reports. Tokens at positions that had a draft
// token, and at all others, are each compared with the likeliest tokens reported for their positions. An engine whose
// drafted positions fail the test (sampling-test.ts) gets no drafts, unless the others fail too: then drafts are not the
// cause, but perhaps a default of the server. A position is counted as drafted by what came before it, never by what was
// drawn there, so that a sound engine is not suspected because its likely tokens are drafted. Only responses that ask for
// alternatives at temperature 1, with nothing that shapes logits, can be compared.

import type { WorkerId } from "../base/ids.ts";
import type { RolloutRequest } from "../request/buffer.ts";
import { type ChunkDrafts, VERIFICATION_WORDS } from "../request/response.ts";
import { SamplingTest } from "./sampling-test.ts";

/** The chance that drafts of a sound engine are switched off, over its whole life. */
const ALPHA = 1e-6;
/** Alternatives of a position: fewer say too little. The last one is left out, as it may be the token drawn. */
const TOP_MIN = 3;
/** Ranks that are counted; rarer ones are one class. */
const RANKS = 8;

export class PositionsTest {
  readonly test = new SamplingTest(ALPHA);
  readonly #drawn = new Float64Array(RANKS);
  readonly #expected = new Float64Array(RANKS);

  /** `top`: highest first. */
  add(logprob: number, top: Float32Array): void {
    this.test.add({ logprob, top });
    const ranks = Math.min(top.length, RANKS - 1);
    let rank = 0;
    let rest = 1;
    while (rank < ranks && (top[rank] ?? 0) > logprob) rank += 1;
    this.#count(this.#drawn, rank < ranks ? rank : RANKS - 1, 1);
    for (let i = 0; i < ranks; i += 1) {
      const probability = Math.exp(top[i] ?? Number.NEGATIVE_INFINITY);
      this.#count(this.#expected, i, probability);
      rest -= probability;
    }
    this.#count(this.#expected, RANKS - 1, Math.max(0, rest));
  }

  #count(counts: Float64Array, rank: number, by: number): void {
    counts[rank] = (counts[rank] ?? 0) + by;
  }

  /** Kullback-Leibler divergence of the ranks drawn from the reported ones, nats; noise is about 3.5 / draws. */
  get kl(): number {
    const { draws } = this.test;
    if (draws === 0) return 0;
    return this.#drawn.reduce((sum, drawn, rank) => {
      const expected = this.#expected[rank] ?? 0;
      return drawn === 0 ? sum : sum + (drawn / draws) * Math.log(drawn / expected);
    }, 0);
  }
}

class EngineDrift {
  readonly drafted = new PositionsTest();
  plain = new PositionsTest();
  /** null: it may have drafts. */
  offMs: number | null = null;
}

export class DriftGuard {
  /** The engines of which positions were compared. */
  readonly engines = new Map<WorkerId, EngineDrift>();

  mayDraft(workerId: WorkerId): boolean {
    return (this.engines.get(workerId)?.offMs ?? null) === null;
  }

  forget(workerId: WorkerId): void {
    this.engines.delete(workerId);
  }

  /** Whether what was drawn for the request can be compared. */
  compares({ sampling }: RolloutRequest["spec"]): boolean {
    const { temperature, shaping, engineFields, topLogprobs } = sampling;
    const isPlain = temperature === 1 && shaping === null && engineFields === null;
    return isPlain && topLogprobs >= TOP_MIN;
  }

  /** The last chunk of a request that it compares has ended. Returns why `mayDraft` changes; null: it does not. */
  ended({ response }: RolloutRequest, hasDrafts: boolean, nowMs: number): string | null {
    const chunk = response.lastChunk;
    const top = chunk && response.topLogprobs(chunk.offset);
    if (chunk === null || top === null) return null;
    const { workerId, offset, run, tokens } = chunk;
    const engine = this.engines.getOrInsertComputed(workerId, () => new EngineDrift());
    const { drafted, offMs } = engine;
    const isDrafted = hasDrafts && (offMs === null || (run?.startMs ?? 0) <= offMs);
    // Draws from before the engine reported its first drafts may have had some.
    if (isDrafted && drafted.test.draws === 0) engine.plain = new PositionsTest();
    const { plain } = engine;
    const marks = draftedPositions(new Uint8Array(tokens), offset, run?.drafts ?? null, isDrafted);
    for (const [i, logprob] of response.logprobs(offset).entries()) {
      const row = top.logprobs.subarray(i * top.count, (i + 1) * top.count - 1);
      if (!Number.isFinite(logprob) || !Number.isFinite(row[0])) continue;
      (marks[i] === 1 ? drafted : plain).add(logprob, row);
    }
    const isOff = drafted.test.isRejected && !plain.test.isRejected;
    if (isOff === (offMs !== null)) return null;
    engine.offMs = isOff ? nowMs : null;
    const means = ({ test, kl }: PositionsTest) =>
      `mean logprob of ${test.draws} ${test.scoreMean.toFixed(3)} instead of ${test.expectedMean.toFixed(3)}, KL ${kl.toFixed(4)}`;
    const verdict = isOff ? "it gets no drafts" : "drafts are not the cause, and on again";
    return `tokens with drafts: ${means(drafted)}; others: ${means(plain)}; ${verdict}`;
  }
}

/** 1: the token had a draft token; all had where the engine drafts and does not say which. */
function draftedPositions(
  marks: Uint8Array,
  offset: number,
  drafts: ChunkDrafts | null,
  hasDrafts: boolean,
): Uint8Array {
  const verifications = drafts?.verifications;
  if (verifications === undefined) return marks.fill(hasDrafts ? 1 : 0);
  for (let at = 0; at < verifications.length; at += VERIFICATION_WORDS) {
    const [first = 0, drafted = 0, accepted = 0] = verifications.subarray(
      at,
      at + VERIFICATION_WORDS,
    );
    marks.fill(1, first - offset, first - offset + Math.min(drafted, accepted + 1));
  }
  return marks;
}
