// Whether an engine with drafts still draws from the distribution that it reports. Tokens at positions that had a draft
// token, and at all others, are each compared with the likeliest tokens reported for their positions. An engine whose
// drafted positions fail the test (sampling-test.ts) gets no more drafts. A position is counted as drafted by what came
// before it, never by what was drawn there, so that a sound engine is not suspected because its likely tokens are drafted.
// Only responses that ask for alternatives at temperature 1, with nothing that shapes logits, can be compared.

import type { WorkerId } from "../base/ids.ts";
import type { Request } from "../request/buffer.ts";
import { type ChunkDrafts, VERIFICATION_WORDS } from "../request/response.ts";
import { SamplingTest } from "./sampling-test.ts";

/** The chance that drafts of a sound engine are switched off, over its whole life. */
const ALPHA = 1e-6;
/** Alternatives of a position: fewer say too little. The last one is left out, as it may be the token drawn. */
const TOP_MIN = 3;
/** Ranks that are counted; rarer ones are one class. */
const RANKS = 8;

/** Positions of one engine, with drafts or without. */
export class PositionsTest {
  readonly test = new SamplingTest(ALPHA);
  readonly #drawn = new Float64Array(RANKS);
  readonly #expected = new Float64Array(RANKS);

  add(logprob: number, top: readonly number[]): void {
    this.test.add({ logprob, top });
    const ranks = Math.min(top.length, RANKS - 1);
    const rank = top.slice(0, ranks).findIndex((one) => one <= logprob);
    this.#count(this.#drawn, rank < 0 ? RANKS - 1 : rank, 1);
    let rest = 1;
    for (let i = 0; i < ranks; i += 1) {
      const probability = Math.exp(top[i] ?? Number.NEGATIVE_INFINITY);
      this.#count(this.#expected, i, probability);
      rest -= probability;
    }
    this.#count(this.#expected, RANKS - 1, Math.max(0, rest));
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

  #count(counts: Float64Array, rank: number, value: number): void {
    counts[rank] = (counts[rank] ?? 0) + value;
  }
}

export class DriftGuard {
  /** The engines of which positions were compared. */
  readonly engines = new Map<WorkerId, Record<"drafted" | "plain", PositionsTest>>();

  mayDraft(workerId: WorkerId): boolean {
    return this.engines.get(workerId)?.drafted.test.isRejected !== true;
  }

  forget(workerId: WorkerId): void {
    this.engines.delete(workerId);
  }

  /** The last chunk has ended; `hasDrafts`: it may have had some. Returns why its engine gets none from now on, else null. */
  ended({ spec, response }: Request, hasDrafts: boolean): string | null {
    const { temperature, shaping, engineFields } = spec.sampling;
    const chunk = response.lastChunk;
    const top = chunk && response.topLogprobs(chunk.offset);
    if (top === null || top.count < TOP_MIN) return null;
    if (chunk === null || temperature !== 1 || shaping !== null || engineFields !== null)
      return null;
    const { workerId, offset, run, tokens } = chunk;
    const { drafted, plain } = this.engines.get(workerId) ?? {
      drafted: new PositionsTest(),
      plain: new PositionsTest(),
    };
    this.engines.set(workerId, { drafted, plain });
    const wasRejected = drafted.test.isRejected;
    const marks = draftedPositions(new Uint8Array(tokens), offset, run?.drafts ?? null, hasDrafts);
    for (const [i, logprob] of response.logprobs(offset).entries()) {
      const row = top.logprobs.subarray(i * top.count, (i + 1) * top.count - 1);
      if (!Number.isFinite(logprob) || !Number.isFinite(row[0])) continue;
      (marks[i] === 1 ? drafted : plain).add(logprob, [...row]);
    }
    const { test, kl } = drafted;
    if (wasRejected || !test.isRejected) return null;
    const means = `mean logprob ${test.scoreMean.toFixed(3)} instead of ${test.expectedMean.toFixed(3)}`;
    const others = `${plain.test.draws} without are ${plain.test.isRejected ? "wrong too" : "not rejected"}`;
    return `of ${test.draws} tokens with drafts: ${means}, KL ${kl.toFixed(4)}; ${others}`;
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
