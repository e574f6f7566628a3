// One response taken apart: which chunks ran where, under which weights, and its tokens with their logprobs.

import { AppError } from "../../base/errors.ts";
import type { Request } from "../../request/buffer.ts";
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
    chunks: response.chunks.map(({ workerId, epoch, weights, offset, tokens: count }) => ({
      worker: workerId,
      name: nameOf(workerId),
      offset,
      tokens: count,
      weight_epoch: epoch,
      ...(weights === null ? {} : { weights }),
    })),
    from,
    token_ids: [...tokens],
    logprobs: Array.from(logprobs, (value) => (Number.isFinite(value) ? value : -9999)),
    texts: Array.from(tokens, (token) => decoder.decode(text.bytes(token))),
  };
}

function find(requests: Iterable<Request>, id: number): Request | null {
  for (const request of requests) if (request.spec.requestId === id) return request;
  return null;
}
