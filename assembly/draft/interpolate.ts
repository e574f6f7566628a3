// Interpolated probabilities: of a token, given all contexts of the group that match (PPM with the escape estimate of
// Witten and Bell 1991, blended over the orders instead of escaped through). Reads the automaton only.
//
// With contexts v0 (the longest that has been continued), v1, ..., T(v) continued occurrences and deg(v)
// different continuations:
//
//   p(a) = sum over j of w_j count(v_j a) / (T(v_j) + deg(v_j)),  w_0 = 1,  w_(j+1) = w_j deg(v_j) / (T(v_j) + deg(v_j))
//
// Of the weight that is left after the last context each token has the part REST.

import { countOf, degreeOf, edgeOf, lenOf, linkOf } from "../suffix/node";

// Contexts interpolated for one token.
const CONTEXTS: i32 = 4;
const REST: f64 = 0.05;
// A context that could add less than this to a probability is left out: it would cost cache misses.
const WEIGHT_MIN: f64 = 0.1;
const contexts: usize = memory.data(4 * 4, 16);
// Weight over (T + deg): a count times it is the context's part of the probability.
const scales: usize = memory.data(4 * 8, 16);
export let contextCount: i32 = 0;
let rest: f64 = 0;
// Tokens of the longest of them.
export let contextLength: u32 = 0;

export function contextAt(index: i32): usize {
  return load<u32>(contexts + ((<usize>index) << 2));
}

export function scaleAt(index: i32): f64 {
  return load<f64>(scales + ((<usize>index) << 3));
}

// Finds the first CONTEXTS contexts from s on that have been continued, and their weights. `ends` of
// each context's occurrences have no continuation.
export function contextsFind(s: usize, ends: u32): void {
  let weight: f64 = 1;
  let v = s;
  let link = linkOf(v);
  contextCount = 0;
  contextLength = 0;
  while (link != 0 && contextCount < CONTEXTS && weight >= WEIGHT_MIN) {
    const degree = degreeOf(v);
    const count = countOf(v);
    if (degree != 0 && count > ends) {
      if (contextCount == 0) contextLength = lenOf(v);
      const scale = weight / (<f64>(count - ends) + <f64>degree);
      store<u32>(contexts + ((<usize>contextCount) << 2), <u32>v);
      store<f64>(scales + ((<usize>contextCount) << 3), scale);
      weight = scale * <f64>degree;
      contextCount += 1;
    }
    v = link;
    link = linkOf(v);
  }
  rest = weight * REST;
}

// Where the token of the last call leads, from the longest context that has it; 0: none has it.
export let targetSeen: usize = 0;
// The index of that context; -1: none has it.
export let ownerSeen: i32 = -1;

// The interpolated probability of a token; sets `targetSeen` and `ownerSeen`.
export function interpolated(token: u32): f64 {
  let p: f64 = 0;
  targetSeen = 0;
  ownerSeen = -1;
  for (let j: i32 = 0; j < contextCount; j++) {
    const target = edgeOf(contextAt(j), token);
    if (target == 0) continue;
    p += scaleAt(j) * <f64>countOf(target);
    if (targetSeen == 0) {
      targetSeen = target;
      ownerSeen = j;
    }
  }
  return p + rest;
}

// Sets what `interpolated` has set for this token before.
export function interpolatedBefore(target: usize, owner: i32): void {
  targetSeen = target;
  ownerSeen = owner;
}

// Where a token leads that no interpolated context has: from the longest context behind `s` that has it, or the root.
export function stateBehind(s: usize, token: u32): usize {
  let v = s;
  while (true) {
    const target = edgeOf(v, token);
    if (target != 0) return target;
    const link = linkOf(v);
    if (link == 0) return v;
    v = link;
  }
}
