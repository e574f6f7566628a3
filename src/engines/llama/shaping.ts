// The part of logit shaping that depends on what a response holds: stop tokens masked, biases, penalties. It
// knows the prompt and the output so far and nothing else, so chunks, moves and drafts change nothing.
// Order and formulas are vLLM's (vllm/v1/sample/sampler.py, apply_logits_processors): masks and biases,
// then the repetition penalty, then frequency and presence.

import type { LogitShaping, RequestSpec } from "../../core/request/request.ts";

export class ShapingState {
  readonly #shaping: LogitShaping;
  readonly #stopTokenIds: readonly number[];
  readonly #counts: boolean;
  /** How often each token is in the output; 0: only in the prompt, where a penalty applies to it. */
  readonly #outputCounts = new Map<number, number>();

  constructor(request: RequestSpec, shaping: LogitShaping) {
    const { repetitionPenalty, presencePenalty, frequencyPenalty } = shaping;
    this.#shaping = shaping;
    this.#stopTokenIds = request.sampling.stopTokenIds;
    this.#counts = repetitionPenalty !== 1 || presencePenalty !== 0 || frequencyPenalty !== 0;
    if (repetitionPenalty === 1) return;
    for (const token of request.prompt) this.#outputCounts.set(token, 0);
  }

  /** The token is in the output now. */
  note(token: number): void {
    if (this.#counts) this.#outputCounts.set(token, 1 + (this.#outputCounts.get(token) ?? 0));
  }

  /** Changes the raw logits of the token that follows `outputLength` output tokens. */
  apply(row: Float32Array, outputLength: number): void {
    if (outputLength < this.#shaping.tokensMin) {
      for (const token of this.#stopTokenIds) row[token] = Number.NEGATIVE_INFINITY;
    }
    for (const { token, bias } of this.#shaping.logitBias) {
      row[token] = (row[token] as number) + bias;
    }
    if (this.#counts) this.#penalise(row);
  }

  #penalise(row: Float32Array): void {
    const { repetitionPenalty, presencePenalty, frequencyPenalty } = this.#shaping;
    for (const [token, count] of this.#outputCounts) {
      let logit = row[token] as number;
      logit = logit > 0 ? logit / repetitionPenalty : logit * repetitionPenalty;
      if (count > 0) logit -= frequencyPenalty * count + presencePenalty;
      row[token] = logit;
    }
  }
}
