// The shares of continuations, blended over all contexts that match. Reads the automaton only.
//
// The share of token a: contexts v0 (the longest that has been continued), v1, ... with T(v) continued
// occurrences and deg(v) different continuations are interpolated as by Witten and Bell (1991):
//
//   share(a) = sum over j of w_j count(v_j a) / (T(v_j) + deg(v_j)),  w_(j+1) = w_j deg / (T + deg)
//
// What is left after the last context counts for any token alike (SHARE_REST of it).

import { countOf, degreeOf, edgeOf, lenOf, linkOf } from "./node";

// Contexts interpolated for one token.
const CLASSES: i32 = 4;
const SHARE_REST: f64 = 0.05;
// A context that could add less than this to a share is not worth its cache misses.
const WEIGHT_MIN: f64 = 0.1;
const classes: usize = memory.data(4 * 4, 16);
// Weight over (T + deg), so that a count times it is the share.
const scales: usize = memory.data(4 * 8, 16);
export let classCount: i32 = 0;
let rest: f64 = 0;
// Tokens of the longest of them.
export let contextLength: u32 = 0;

export function classAt(index: i32): usize {
  return load<u32>(classes + ((<usize>index) << 2));
}

export function scaleAt(index: i32): f64 {
  return load<f64>(scales + ((<usize>index) << 3));
}

// Finds the first CLASSES contexts from s on that have been continued, and their weights. `ends` of
// each context's occurrences have no continuation.
export function gather(s: usize, ends: u32): void {
  let weight: f64 = 1;
  let v = s;
  let link = linkOf(v);
  classCount = 0;
  contextLength = 0;
  while (link != 0 && classCount < CLASSES && weight >= WEIGHT_MIN) {
    const degree = degreeOf(v);
    const count = countOf(v);
    if (degree != 0 && count > ends) {
      if (classCount == 0) contextLength = lenOf(v);
      const scale = weight / (<f64>(count - ends) + <f64>degree);
      store<u32>(classes + ((<usize>classCount) << 2), <u32>v);
      store<f64>(scales + ((<usize>classCount) << 3), scale);
      weight = scale * <f64>degree;
      classCount += 1;
    }
    v = link;
    link = linkOf(v);
  }
  rest = weight * SHARE_REST;
}

// Where the continuation last asked about leads, from the longest context that has it.
export let targetSeen: usize = 0;
// The index of that context; -1: none has it.
export let ownerSeen: i32 = -1;

// The share of a continuation; sets `targetSeen` and `ownerSeen`.
export function shareOf(token: u32): f64 {
  let share: f64 = 0;
  targetSeen = 0;
  ownerSeen = -1;
  for (let j: i32 = 0; j < classCount; j++) {
    const target = edgeOf(classAt(j), token);
    if (target == 0) continue;
    share += scaleAt(j) * <f64>countOf(target);
    if (targetSeen == 0) {
      targetSeen = target;
      ownerSeen = j;
    }
  }
  return share + rest;
}

// Sets what shareOf would, for a token that it has been asked about before.
export function shareSeen(target: usize, owner: i32): void {
  targetSeen = target;
  ownerSeen = owner;
}
