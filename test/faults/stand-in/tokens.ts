// What the stand-in says, and how a test knows it: every token is a function of all tokens before it and of the
// sample's number. A token lost, repeated or swapped on the way changes every one that follows.

import { fold32 } from "../../../src/core/base/hash.ts";

export const VOCABULARY_SIZE = 1000;
/** Ends a response where a request does not say `ignore_eos`. Drawn about once in 1000 tokens. */
export const EOS = 2;

/** Draws one token after another of a text. */
export class StandInText {
  #hash: number;

  constructor(sample: number) {
    this.#hash = fold32(0x57a4d, sample);
  }

  read(tokens: Iterable<number>): void {
    for (const token of tokens) this.#hash = fold32(this.#hash, token);
  }

  /** The next token; `banned` ones are passed over, as vLLM does before `min_tokens`. */
  draw(banned: ReadonlySet<number> | null): number {
    let token = fold32(this.#hash, 1) % VOCABULARY_SIZE;
    while (banned?.has(token)) token = (token + 1) % VOCABULARY_SIZE;
    this.#hash = fold32(this.#hash, token);
    return token;
  }
}

export function standInLogprob(token: number): number {
  return 0 - (token % 100) / 64;
}

export interface Candidate {
  readonly token: number;
  readonly logprob: number;
  /** 1: the likeliest. */
  readonly rank: number;
}

/** The token drawn and the one other that had a chance, likeliest first. An odd token is the less likely one. */
export function standInCandidates(token: number): [Candidate, Candidate] {
  const logprob = standInLogprob(token);
  const other = (token + 7) % VOCABULARY_SIZE;
  if (token % 2 === 0) {
    return [
      { token, logprob, rank: 1 },
      { token: other, logprob: logprob - 0.5, rank: 2 },
    ];
  }
  return [
    { token: other, logprob: logprob + 0.5, rank: 1 },
    { token, logprob, rank: 2 },
  ];
}

/** A whole response, as one request with nothing in its way would bring it. Defaults: those of a request without a seed. */
export function standInResponse(options: {
  prompt: Iterable<number>;
  sample?: number;
  tokensMin?: number;
  tokensMax: number;
  stopTokenIds?: readonly number[];
}): number[] {
  const { prompt, sample = 0, tokensMin = 0, tokensMax, stopTokenIds = [EOS] } = options;
  const text = new StandInText(sample);
  text.read(prompt);
  const stops = new Set(stopTokenIds);
  const tokens: number[] = [];
  while (tokens.length < tokensMax) {
    const token = text.draw(tokens.length < tokensMin ? stops : null);
    tokens.push(token);
    if (stops.has(token)) break;
  }
  return tokens;
}
