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

class EngineDrift {
  readonly drafted = new SamplingTest(ALPHA);
  plain = new SamplingTest(ALPHA);
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
    if (isDrafted && drafted.draws === 0) engine.plain = new SamplingTest(ALPHA);
    const { plain } = engine;
    const marks = draftedPositions(new Uint8Array(tokens), offset, run?.drafts ?? null, isDrafted);
    for (const [i, logprob] of response.logprobs(offset).entries()) {
      const row = top.logprobs.subarray(i * top.count, (i + 1) * top.count - 1);
      if (!Number.isFinite(logprob) || !Number.isFinite(row[0])) continue;
      (marks[i] === 1 ? drafted : plain).add({ logprob, top: row });
    }
    const isOff = drafted.isRejected && !plain.isRejected;
    if (isOff === (offMs !== null)) return null;
    engine.offMs = isOff ? nowMs : null;
    const means = ({ draws, scoreMean, expectedMean }: SamplingTest) =>
      `mean logprob of ${draws} ${scoreMean.toFixed(3)} instead of ${expectedMean.toFixed(3)}`;
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
