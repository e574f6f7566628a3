// A baseline for the core's benches: the same automaton in plain TypeScript, typed arrays for states and
// one Map a branching state for edges, with the same depth bound and the same path draft. Not for use.

import { present } from "../../src/core/base/assert.ts";

const NONE = -1;
const DISCOUNT = 0.5;
const CLASSES = 4;
const CONTEXT = 64;
const DEPTH = CONTEXT + 32;

interface Sequence {
  last: number;
  top: number;
}

/** Grows by doubling, as a typed array must. */
function doubled(array: Int32Array): Int32Array<ArrayBuffer> {
  const wider = new Int32Array(array.length * 2);
  wider.set(array);
  return wider;
}

export class PlainAutomaton {
  #len = new Int32Array(1024);
  #link = new Int32Array(1024);
  #count = new Int32Array(1024);
  #bestToken = new Int32Array(1024);
  #bestTarget = new Int32Array(1024);
  readonly #edges = new Map<number, Map<number, number>>();
  readonly #sequences: Sequence[] = [];
  #states = 1;

  constructor() {
    this.#link[0] = NONE;
    this.#bestToken[0] = NONE;
    this.#bestTarget[0] = NONE;
  }

  append(sequence: number, token: number): void {
    while (this.#sequences.length <= sequence) this.#sequences.push({ last: 0, top: 0 });
    const own = present(this.#sequences[sequence], "sequence");
    const last = own.last;
    let current = this.#edge(last, token);
    if (current === NONE) {
      current = this.#state(this.#at(this.#len, last) + 1);
      let p = last;
      while (p !== NONE && this.#edge(p, token) === NONE) {
        this.#add(p, token, current);
        p = this.#at(this.#link, p);
      }
      const link = p === NONE ? 0 : this.#split(p, token, this.#edge(p, token));
      this.#link[current] = link;
    } else {
      current = this.#split(last, token, current);
    }
    const top = this.#normal(own.top);
    const counted = this.#normal(this.#edge(top, token));
    own.last = current;
    own.top = counted;
    this.#raise(top, counted, token);
  }

  /** Tokens of the most probable path. */
  path(sequence: number, tokensMax: number, probabilityMin: number): number[] {
    const own = this.#sequences[sequence];
    const out: number[] = [];
    if (own === undefined) return out;
    let state = this.#climb(this.#normal(own.top), CONTEXT);
    let p = 1;
    let ends = 1;
    while (out.length < tokensMax) {
      const [token, q, next] = this.#mostProbable(state, ends);
      p *= Math.min(1, q);
      if (token === NONE || p < probabilityMin) break;
      out.push(token);
      state = next;
      ends = 0;
    }
    return out;
  }

  #mostProbable(from: number, ends: number): [number, number, number] {
    const classes: number[] = [];
    const weights: number[] = [];
    let weight = 1;
    for (let v = from; v > 0 && classes.length < CLASSES; v = this.#at(this.#link, v)) {
      const total = this.#at(this.#count, v) - ends;
      const degree = this.#degree(v);
      if (degree === 0 || total < 1) continue;
      classes.push(v);
      weights.push(weight);
      weight = Math.min(1, (weight * DISCOUNT * degree) / total);
    }
    let best = NONE;
    let bestQ = 0;
    for (const v of classes) {
      const token = this.#at(this.#bestToken, v);
      if (token === best) continue;
      let q = 0;
      for (const [j, u] of classes.entries()) {
        const target = this.#edge(u, token);
        if (target === NONE) continue;
        const total = this.#at(this.#count, u) - ends;
        q += ((weights[j] ?? 0) * (this.#at(this.#count, target) - DISCOUNT)) / total;
      }
      if (q > bestQ || (q === bestQ && token < best)) [best, bestQ] = [token, q];
    }
    const first = classes.find((v) => this.#edge(v, best) !== NONE);
    return [best, bestQ, first === undefined ? 0 : this.#edge(first, best)];
  }

  #at(array: Int32Array, state: number): number {
    return array[state] ?? 0;
  }

  #degree(v: number): number {
    return this.#edges.get(v)?.size ?? (this.#at(this.#bestToken, v) === NONE ? 0 : 1);
  }

  #edge(v: number, token: number): number {
    if (this.#at(this.#bestToken, v) === token) return this.#at(this.#bestTarget, v);
    return this.#edges.get(v)?.get(token) ?? NONE;
  }

  #state(len: number): number {
    if (this.#states === this.#len.length) {
      this.#len = doubled(this.#len);
      this.#link = doubled(this.#link);
      this.#count = doubled(this.#count);
      this.#bestToken = doubled(this.#bestToken);
      this.#bestTarget = doubled(this.#bestTarget);
    }
    const state = this.#states;
    this.#states += 1;
    this.#len[state] = len;
    this.#bestToken[state] = NONE;
    this.#bestTarget[state] = NONE;
    return state;
  }

  #add(v: number, token: number, target: number): void {
    const best = this.#at(this.#bestToken, v);
    if (best === NONE) {
      this.#bestToken[v] = token;
      this.#bestTarget[v] = target;
      return;
    }
    const edges = this.#edges.get(v);
    if (edges !== undefined) edges.set(token, target);
    else {
      const both = [
        [best, this.#at(this.#bestTarget, v)],
        [token, target],
      ] as const;
      this.#edges.set(v, new Map(both));
    }
  }

  #split(p: number, token: number, q: number): number {
    const len = this.#at(this.#len, p) + 1;
    if (this.#at(this.#len, q) === len) return q;
    const clone = this.#state(len);
    this.#link[clone] = this.#at(this.#link, q);
    this.#count[clone] = this.#at(this.#count, q);
    this.#bestToken[clone] = this.#at(this.#bestToken, q);
    this.#bestTarget[clone] = this.#at(this.#bestTarget, q);
    const edges = this.#edges.get(q);
    if (edges !== undefined) this.#edges.set(clone, new Map(edges));
    this.#link[q] = clone;
    for (let at = p; at !== NONE && this.#edge(at, token) === q; at = this.#at(this.#link, at)) {
      this.#edges.get(at)?.set(token, clone);
      if (this.#at(this.#bestToken, at) === token) this.#bestTarget[at] = clone;
    }
    return clone;
  }

  #climb(from: number, bound: number): number {
    let t = from;
    let link = this.#at(this.#link, t);
    while (link > 0 && this.#at(this.#len, link) >= bound) {
      t = link;
      link = this.#at(this.#link, t);
    }
    return t;
  }

  #normal(top: number): number {
    return this.#climb(top, DEPTH);
  }

  #raise(from: number, counted: number, token: number): void {
    let p = from;
    let v = counted;
    while (v > 0) {
      const count = this.#at(this.#count, v) + 1;
      this.#count[v] = count;
      const link = this.#at(this.#link, v);
      const shorter = this.#at(this.#len, link);
      while (p !== NONE && this.#at(this.#len, p) >= shorter) {
        if (this.#at(this.#len, p) < this.#at(this.#len, v)) this.#raised(p, token, v, count);
        p = this.#at(this.#link, p);
      }
      v = link;
    }
    this.#count[0] = this.#at(this.#count, 0) + 1;
  }

  #raised(p: number, token: number, target: number, count: number): void {
    const best = this.#at(this.#bestToken, p);
    if (best === token) return;
    const seen = this.#at(this.#count, this.#at(this.#bestTarget, p));
    if (count < seen || (count === seen && token > best)) return;
    this.#bestToken[p] = token;
    this.#bestTarget[p] = target;
  }
}
