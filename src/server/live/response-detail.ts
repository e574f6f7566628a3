// One response taken apart: which chunks ran where, under which weights, and its tokens with their logprobs.

import type { RolloutRequest } from "../../core/request/buffer.ts";
import {
  type Chunk,
  type RolloutResponse,
  VERIFICATION_WORDS,
} from "../../core/request/response.ts";
import type { Text } from "../../text/text.ts";

const TOKENS_MAX = 4096;
const CHARACTER_BYTES_MAX = 4;

/** The response's chunks, and a page of its tokens from number `from` on. */
export function responseDetail(
  { spec, response, status }: RolloutRequest,
  about: {
    readonly from: number;
    readonly text: Text;
    readonly nameOf: (worker: number) => string;
  },
) {
  const { from, text, nameOf } = about;
  const tokens = response.tokens().slice(from, from + TOKENS_MAX);
  const logprobs = response.logprobs().slice(from, from + TOKENS_MAX);
  return {
    request: spec.requestId,
    group: spec.groupId,
    index: spec.sampleIndex,
    status,
    finish_reason: response.finish,
    prompt_tokens: spec.prompt.length,
    length: response.length,
    tokens_max: response.tokensMax,
    restarts: response.restarts,
    chunks: response.chunks.map(({ workerId, epoch, weights, offset, tokens: count, run }) => ({
      worker: workerId,
      name: nameOf(workerId),
      offset,
      tokens: count,
      weight_epoch: epoch,
      ...(weights === null ? {} : { weights }),
      drafted_tokens: run?.drafts?.draftedTokens ?? null,
      accepted_tokens: run?.drafts?.acceptedTokens ?? null,
    })),
    from,
    token_ids: [...tokens],
    logprobs: Array.from(logprobs, (value) => (Number.isFinite(value) ? value : -9999)),
    ...draftColumns(response.chunks, from, tokens.length),
    texts: textsOf(response, from, tokens.length, text),
  };
}

/** The text of each token. A character over several tokens is the last one's; joined, the pages are the response's text. */
function textsOf(response: RolloutResponse, from: number, count: number, text: Text): string[] {
  const decoder = new TextDecoder("utf-8", { ignoreBOM: true });
  const start = Math.max(0, from - CHARACTER_BYTES_MAX);
  const tokens = response.tokens(start).subarray(0, from - start + count);
  const last = response.finish === null ? Number.POSITIVE_INFINITY : response.length - 1;
  const pieces = Array.from(tokens, (token, i) =>
    decoder.decode(text.bytes(token), { stream: start + i < last }),
  );
  return pieces.slice(from - start);
}

/**
 * For each token from `from` on, whether it was an accepted draft token; for each that was drawn behind a draft, how many
 * draft tokens were refused there. null: not reported, or its chunk is not over.
 */
function draftColumns(chunks: readonly Chunk[], from: number, count: number) {
  const accepted = new Array<boolean | null>(count).fill(null);
  const refused = new Array<number>(count).fill(0);
  for (const { offset, tokens, run } of chunks) {
    const verifications = run?.drafts?.verifications;
    if (verifications === undefined) continue;
    for (let at = Math.max(from, offset); at < offset + tokens && at < from + count; at += 1) {
      accepted[at - from] = false;
    }
    for (let i = 0; i + 2 < verifications.length; i += VERIFICATION_WORDS) {
      const [first = 0, drafted = 0, kept = 0] = verifications.subarray(i, i + VERIFICATION_WORDS);
      if (first + kept < from || first >= from + count) continue;
      for (let at = first; at < first + kept; at += 1) {
        if (at >= from && at < from + count) accepted[at - from] = true;
      }
      const drawn = first + kept - from;
      if (drawn < count) refused[drawn] = drafted - kept;
    }
  }
  return { accepted, refused };
}
