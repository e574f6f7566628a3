// Earlier responses to the same prompt, for trainers that come back to their prompts: a weaker draft
// source than the group's own. Owns finished responses only, by prompt, and all their bounds: bytes (the least
// recently used prompt goes first, its oldest epoch first), epochs and responses of each prompt. It builds
// no index; whatever it returns can make drafts better or worse, never a response wrong.

import { HISTORY_TOKENS_MAX } from "../wasm/suffix-index.ts";

interface Generation {
  readonly epoch: number;
  responses: Int32Array[];
}

const LIMIT_BYTES = 64 * 1024 * 1024;
/** Epochs kept of a prompt, among those in which it occurred, adjacent or not. */
const GENERATIONS_MAX = 2;
/** Responses kept of a prompt's latest epoch; each older one has half as many. */
const RESPONSES_MAX = 8;
/** Bytes of a typed array and its place, about: so that short logs are bounded too. */
const LOG_BYTES = 128;

export class History {
  readonly #limitBytes: number;
  /** The least recently used prompt first. */
  readonly #prompts = new Map<number, Generation[]>();
  #epoch = 0;
  #responses = 0;
  #usedBytes = 0;

  /** `limitBytes`: what all responses may take together. */
  constructor(limitBytes: number = LIMIT_BYTES) {
    this.#limitBytes = limitBytes;
  }

  /** Epochs that have begun. */
  get epoch(): number {
    return this.#epoch;
  }

  /** Advances the weight epoch of tokens recorded from now on. */
  advance(): void {
    this.#epoch += 1;
  }

  /** Responses of earlier epochs to a prompt, by `promptKey`, the latest first. They must not be changed. */
  past(key: number): readonly Int32Array[] {
    const generations = this.#prompts.get(key);
    if (generations === undefined) return [];
    this.#prompts.delete(key);
    this.#prompts.set(key, generations);
    // If a group is registered again, its responses of this epoch are here; they also come as live ones.
    return generations
      .filter(({ epoch }) => epoch < this.#epoch)
      .flatMap(({ responses }) => responses);
  }

  /** Files a copy of one response of this epoch, by `promptKey`. Tokens are ids >= 0. */
  add(key: number, tokens: Int32Array): void {
    const copy = tokens.slice(0, HISTORY_TOKENS_MAX);
    if (copy.length > 0) this.#file(key, copy);
  }

  stats() {
    const { size: prompts } = this.#prompts;
    return { prompts, responses: this.#responses, usedBytes: this.#usedBytes };
  }

  #file(key: number, response: Int32Array): void {
    const generations = this.#prompts.get(key) ?? [];
    for (const generation of generations) this.#count(generation.responses, -1);
    const latest = generations[0];
    if (latest?.epoch === this.#epoch) latest.responses.push(response);
    else generations.unshift({ epoch: this.#epoch, responses: [response] });
    generations.length = Math.min(generations.length, GENERATIONS_MAX);
    for (const [age, generation] of generations.entries()) {
      // Half as many for each generation of age: that is how the past decays.
      const count = Math.max(1, Math.floor(RESPONSES_MAX / 2 ** age));
      generation.responses = longest(generation.responses, count);
      this.#count(generation.responses, 1);
    }
    this.#prompts.delete(key);
    this.#prompts.set(key, generations);
    this.#evict();
  }

  #count(responses: readonly Int32Array[], sign: 1 | -1): void {
    this.#responses += sign * responses.length;
    for (const { length } of responses) this.#usedBytes += sign * (LOG_BYTES + 4 * length);
  }

  /** Drops the oldest generation of the least recently used prompt, until the rest fits. */
  #evict(): void {
    for (const [key, generations] of this.#prompts) {
      while (this.#usedBytes > this.#limitBytes) {
        const oldest = generations.pop();
        if (oldest === undefined) break;
        this.#count(oldest.responses, -1);
      }
      if (generations.length > 0) return;
      this.#prompts.delete(key);
    }
  }
}

/** The longest `count` responses, in their order: those that finished first are the shortest. */
function longest(responses: Int32Array[], count: number): Int32Array[] {
  if (responses.length <= count) return responses;
  const kept = new Set(responses.toSorted((a, b) => b.length - a.length).slice(0, count));
  return responses.filter((response) => kept.has(response));
}
