// The part of logit shaping that depends on prompt and output: masked stop tokens, biases, penalties. It
// depends on nothing else, so chunks, migrations and drafts do not change it.
// Order and formulas are vLLM's (vllm/v1/sample/sampler.py, apply_logits_processors): masks and biases,
// then the repetition penalty, then frequency and presence.

import type { LogitShaping, RequestSpec } from "../../core/request/request.ts";

export class ShapingState {
  readonly #shaping: LogitShaping;
  readonly #stopTokenIds: readonly number[];
  readonly #counts: boolean;
  /** Number of occurrences in the output; 0: the token is only in the prompt, which the repetition penalty counts, too. */
  readonly #outputCounts = new Map<number, number>();

  constructor(request: RequestSpec, shaping: LogitShaping) {
    const { repetitionPenalty, presencePenalty, frequencyPenalty } = shaping;
    this.#shaping = shaping;
    this.#stopTokenIds = request.sampling.stopTokenIds;
    this.#counts = repetitionPenalty !== 1 || presencePenalty !== 0 || frequencyPenalty !== 0;
    if (repetitionPenalty === 1) return;
    for (const token of request.prompt) this.#outputCounts.set(token, 0);
  }

  /** Counts a token that was added to the output. */
  note(token: number): void {
    if (this.#counts) this.#outputCounts.set(token, 1 + (this.#outputCounts.get(token) ?? 0));
  }

  /** Changes the raw logits for the token after `outputLength` output tokens. */
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
