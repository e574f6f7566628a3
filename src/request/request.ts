// What a request is: one response being made for one prompt. Plain data, shared by every layer.

import type { GroupId, RequestId } from "../base/ids.ts";

/** How tokens are drawn. `temperature` 0 means greedy (lowest token id wins a tie). */
export interface SamplingParams {
  /** >= 0. */
  readonly temperature: number;
  /** Any safe integer; with the group id and the sample index it keys every random number. */
  readonly seed: number;
  /** Upper bound on output tokens, >= 1. */
  readonly tokensMax: number;
  /** Tokens that end the response; the one that ended it is the response's last token. */
  readonly stopTokenIds: readonly number[];
}

/** Why a response ended: a stop token, or `tokensMax`. */
export type FinishReason = "stop" | "length";

export interface RequestSpec {
  readonly requestId: RequestId;
  readonly groupId: GroupId;
  /** Index within the group, 0 <= sampleIndex < group size. */
  readonly sampleIndex: number;
  readonly prompt: Int32Array;
  readonly sampling: SamplingParams;
}
