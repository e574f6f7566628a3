// The part of logit shaping that depends on what a response holds: stop tokens masked, biases, penalties. It
// knows the prompt and the output so far and nothing else, so chunks, moves and drafts change nothing.
// Order and formulas are vLLM's (vllm/v1/sample/sampler.py, apply_logits_processors): masks and biases,
// then the repetition penalty, then frequency and presence.

import type { LogitShaping, RequestSpec } from "../../core/request/request.ts";

const INITIAL_TOKENS = 64;

export class ShapingState {
  readonly #shaping: LogitShaping;
  readonly #stopTokenIds: readonly number[];
  readonly #counts: boolean;
  /** Distinct tokens of the output, and of the prompt where a penalty applies to it. */
  readonly #indexOf = new Map<number, number>();
  #tokens = new Int32Array(INITIAL_TOKENS);
  /** How often each is in the output; 0: only in the prompt. */
  #outputCounts = new Int32Array(INITIAL_TOKENS);

  constructor(request: RequestSpec, shaping: LogitShaping) {
    const { repetitionPenalty, presencePenalty, frequencyPenalty } = shaping;
    this.#shaping = shaping;
    this.#stopTokenIds = request.sampling.stopTokenIds;
    this.#counts = repetitionPenalty !== 1 || presencePenalty !== 0 || frequencyPenalty !== 0;
    if (repetitionPenalty !== 1) for (const token of request.prompt) this.#entry(token);
  }

  /** The token is in the output now. */
  note(token: number): void {
    if (!this.#counts) return;
    const index = this.#entry(token);
    this.#outputCounts[index] = (this.#outputCounts[index] as number) + 1;
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
    const size = this.#indexOf.size;
    for (let i = 0; i < size; i += 1) {
      const token = this.#tokens[i] as number;
      const count = this.#outputCounts[i] as number;
      let logit = row[token] as number;
      logit = logit > 0 ? logit / repetitionPenalty : logit * repetitionPenalty;
      if (count > 0) logit -= frequencyPenalty * count + presencePenalty;
      row[token] = logit;
    }
  }

  #entry(token: number): number {
    const known = this.#indexOf.get(token);
    if (known !== undefined) return known;
    const index = this.#indexOf.size;
    if (index === this.#tokens.length) {
      this.#tokens = grown(this.#tokens);
      this.#outputCounts = grown(this.#outputCounts);
    }
    this.#indexOf.set(token, index);
    this.#tokens[index] = token;
    return index;
  }
}

function grown(from: Int32Array): Int32Array<ArrayBuffer> {
  const to = new Int32Array(from.length * 2);
  to.set(from);
  return to;
}
