// One response taken apart: which chunks ran where, under which weights, and its tokens with their logprobs.

import { AppError } from "../../base/errors.ts";
import type { Request } from "../../request/buffer.ts";
import { type Chunk, VERIFICATION_WORDS } from "../../request/response.ts";
import type { Text } from "../../text/text.ts";

/** Of one answer: a page of tokens. */
const TOKENS_MAX = 4096;

/** Tokens from `from` on. @throws AppError not_found. */
export function responseDetail(
  requests: Iterable<Request>,
  about: {
    readonly id: number;
    readonly from: number;
    readonly text: Text;
    readonly nameOf: (worker: number) => string;
  },
): object {
  const { id, from, text, nameOf } = about;
  const request = find(requests, id);
  if (request === null) {
    throw new AppError(
      "not_found",
      `request ${id} is not here: it never was, or its group is complete`,
    );
  }
  const { spec, response, status } = request;
  const tokens = response.tokens().slice(from, from + TOKENS_MAX);
  const logprobs = response.logprobs().slice(from, from + TOKENS_MAX);
  const decoder = new TextDecoder();
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
    texts: Array.from(tokens, (token) => decoder.decode(text.bytes(token))),
  };
}

/**
 * For each token from `from` on, whether it was an accepted draft token; for each that was drawn behind a draft, how many
 * draft tokens were refused there. null: not reported, or its chunk is not over.
 */
function draftColumns(chunks: readonly Chunk[], from: number, count: number): object {
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

function find(requests: Iterable<Request>, id: number): Request | null {
  for (const request of requests) if (request.spec.requestId === id) return request;
  return null;
}
