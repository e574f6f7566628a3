// What earlier text knows of the tokens that a response has next. `CopiedText`: how many of them have followed its last
// token, in this order, in the text of its group: what a draft copied from the best place has. It is a suffix automaton
// (Blumer et al. 1985) of texts that grow at the same time, shares nothing with the core's, and need not be as fast.
// `FollowedTokens`: how many have each followed the token before them in any text: no earlier text offers the next one.

import { assert } from "../../../src/core/base/assert.ts";

const ROOT = 0;
const NONE = -1;
/** A state and a token, 31 bits, are one number. */
const TOKENS = 2 ** 31;
const STATES_MAX = 2 ** 22;

export class CopiedText {
  /** The end of the prompt: where every response begins. */
  readonly begin: number;
  /** A state's longest string, the state of its longest suffix that is elsewhere too, and its last edge. */
  readonly #length: number[] = [0];
  readonly #link: number[] = [NONE];
  readonly #edge: number[] = [NONE];
  readonly #targets = new Map<number, number>();
  /** An edge's token, and the edge of the same state before it. */
  readonly #token: number[] = [];
  readonly #before: number[] = [];

  /** `past`: earlier responses to the prompt. */
  constructor(prompt: Int32Array, past: readonly Int32Array[]) {
    this.begin = this.append(ROOT, prompt);
    for (const response of past) this.append(this.begin, response);
  }

  /** Appends tokens to the text that ends at `end`; returns its new end. */
  append(end: number, tokens: Int32Array): number {
    let state = end;
    for (const token of tokens) state = this.#extend(state, token);
    return state;
  }

  /** How many of `tokens`, from the first on, have followed `last` somewhere; undefined: have come anywhere. */
  reach(last: number | undefined, tokens: Int32Array): number {
    let state = last === undefined ? ROOT : this.#target(ROOT, last);
    let count = 0;
    for (const token of tokens) {
      state = state === undefined ? undefined : this.#target(state, token);
      if (state === undefined) break;
      count += 1;
    }
    return count;
  }

  #extend(last: number, token: number): number {
    const known = this.#target(last, token);
    if (known !== undefined) return this.#exact(last, token, known);
    const state = this.#add((this.#length[last] ?? 0) + 1, ROOT);
    let from = last;
    let target: number | undefined;
    while (from !== NONE) {
      target = this.#target(from, token);
      if (target !== undefined) break;
      this.#connect(from, token, state);
      from = this.#link[from] ?? NONE;
    }
    if (target !== undefined) this.#link[state] = this.#exact(from, token, target);
    return state;
  }

  /** The state of the longest string of `from` with `token`: `target`, or a part of it that is split off. */
  #exact(from: number, token: number, target: number): number {
    const length = (this.#length[from] ?? 0) + 1;
    if (this.#length[target] === length) return target;
    const state = this.#add(length, this.#link[target] ?? ROOT);
    for (let edge = this.#edge[target] ?? NONE; edge !== NONE; edge = this.#before[edge] ?? NONE) {
      const next = this.#token[edge] ?? 0;
      this.#connect(state, next, this.#target(target, next) ?? ROOT);
    }
    this.#link[target] = state;
    for (let s = from; s !== NONE && this.#target(s, token) === target; s = this.#link[s] ?? NONE) {
      this.#targets.set(s * TOKENS + token, state);
    }
    return state;
  }

  #add(length: number, link: number): number {
    assert(this.#length.length < STATES_MAX, "a group's text has less than two million tokens");
    this.#link.push(link);
    this.#edge.push(NONE);
    return this.#length.push(length) - 1;
  }

  #target(state: number, token: number): number | undefined {
    return this.#targets.get(state * TOKENS + token);
  }

  #connect(state: number, token: number, target: number): void {
    this.#targets.set(state * TOKENS + token, target);
    this.#before.push(this.#edge[state] ?? NONE);
    this.#edge[state] = this.#token.push(token) - 1;
  }
}

/** The followers of each token in all texts. */
export class FollowedTokens {
  readonly #followers = new Map<number | undefined, Set<number>>();

  /** `before`: the token before the first; undefined: the text begins. */
  append(before: number | undefined, tokens: Int32Array): void {
    let last = before;
    for (const token of tokens) {
      this.#followers.getOrInsertComputed(last, () => new Set()).add(token);
      last = token;
    }
  }

  /** How many of `tokens`, from the first on. */
  reach(before: number | undefined, tokens: Int32Array): number {
    const isNew = (token: number, i: number) =>
      this.#followers.get(i === 0 ? before : tokens[i - 1])?.has(token) !== true;
    const count = tokens.findIndex(isNew);
    return count < 0 ? tokens.length : count;
  }
}
