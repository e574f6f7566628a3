// Drafts by back-off over all matching contexts (PPM, method D escapes: Howard 1993): from the match
// state, shorter contexts are reached by links, continuations by edges. Reads the automaton only.
// Ties are decided by content (probability, parent, lowest token), so replicas draft alike.

import {
  bestTarget,
  bestToken,
  countOf,
  degreeOf,
  edgeOf,
  linkOf,
  NONE,
  pairsBegin,
  pairsEnd,
} from "./node";

// Contexts blended for one token of a path.
const CLASSES: i32 = 4;
const DISCOUNT: f64 = 0.5;
// A class with more continuations proposes its best one only: it says little, and a scan costs.
const SCAN_MAX: u32 = 64;
// At 1/512 no more than 512 continuations can be waiting (their probabilities sum to at most one),
// but exclusion may leave some twice; twice the room holds them.
export const PROBABILITY_FLOOR: f64 = 1.0 / 512.0;
const QUEUE_MAX: i32 = 1024;
const ITEM_BYTES: usize = 24;
const PROPOSED_MAX: i32 = 1024;

const classes: usize = memory.data(4 * 4, 16);
const weights: usize = memory.data(4 * 8, 16);
const queue: usize = memory.data(24 * 1024, 16);
const proposed: usize = memory.data(8 * 1024, 16);
let queueCount: i32 = 0;
let proposedCount: i32 = 0;

// Where a draft goes: token, parent and probability arrays, and how many are out.
let outTokens: usize = 0;
let outParents: usize = 0;
let outProbabilities: usize = 0;
let outCount: i32 = 0;

export function draftInto(tokens: usize, parents: usize, probabilities: usize): void {
  outTokens = tokens;
  outParents = parents;
  outProbabilities = probabilities;
  outCount = 0;
}

function emit(token: u32, parent: i32, probability: f64): void {
  const at = (<usize>outCount) << 2;
  store<u32>(outTokens + at, token);
  store<i32>(outParents + at, parent);
  store<f32>(outProbabilities + at, <f32>probability);
  outCount += 1;
}

// Occurrences that have a continuation.
function total(v: usize, ends: u32): f64 {
  return <f64>countOf(v) - <f64>ends;
}

// The first CLASSES contexts from s on that have been continued; how many there are.
function gather(s: usize, ends: u32): i32 {
  let found: i32 = 0;
  let weight: f64 = 1;
  let v = s;
  let link = linkOf(v);
  while (link != 0 && found < CLASSES) {
    const degree = degreeOf(v);
    const t = total(v, ends);
    if (degree != 0 && t >= 1) {
      store<u32>(classes + ((<usize>found) << 2), <u32>v);
      store<f64>(weights + ((<usize>found) << 3), weight);
      weight = min<f64>(1, (weight * DISCOUNT * <f64>degree) / t);
      found += 1;
    }
    v = link;
    link = linkOf(v);
  }
  return found;
}

function blended(token: u32, found: i32, ends: u32): f64 {
  let q: f64 = 0;
  for (let j: i32 = 0; j < found; j++) {
    const v: usize = load<u32>(classes + ((<usize>j) << 2));
    const target = edgeOf(v, token);
    if (target == 0) continue;
    const weight = load<f64>(weights + ((<usize>j) << 3));
    q += (weight * (<f64>countOf(target) - DISCOUNT)) / total(v, ends);
  }
  return q;
}

// One chain of the most probable tokens. Returns its length.
export function draftPath(match: usize, ends: u32, tokensMax: i32, probabilityMin: f64): i32 {
  let s = match;
  let p: f64 = 1;
  let own = ends;
  while (outCount < tokensMax) {
    const found = gather(s, own);
    if (found == 0) break;
    let best: u32 = NONE;
    let bestQ: f64 = 0;
    for (let j: i32 = 0; j < found; j++) {
      const token = bestToken(load<u32>(classes + ((<usize>j) << 2)));
      if (token == best) continue;
      const q = blended(token, found, own);
      if (q > bestQ || (q == bestQ && token < best)) {
        best = token;
        bestQ = q;
      }
    }
    p *= min<f64>(1, bestQ);
    if (p < probabilityMin || best == NONE) break;
    emit(best, outCount - 1, p);
    s = 0;
    for (let j: i32 = 0; j < found && s == 0; j++) {
      s = edgeOf(load<u32>(classes + ((<usize>j) << 2)), best);
    }
    own = 0;
  }
  return outCount;
}

// An item of the queue: probability, state, token (NONE: go on in this shorter context), parent.
function before(a: usize, b: usize): bool {
  const pa = load<f64>(a);
  const pb = load<f64>(b);
  if (pa != pb) return pa > pb;
  const ra = load<i32>(a, 16);
  const rb = load<i32>(b, 16);
  if (ra != rb) return ra < rb;
  return load<u32>(a, 12) < load<u32>(b, 12);
}

function itemAt(index: i32): usize {
  return queue + <usize>index * ITEM_BYTES;
}

function itemCopy(to: usize, from: usize): void {
  store<u64>(to, load<u64>(from));
  store<u64>(to, load<u64>(from, 8), 8);
  store<i32>(to, load<i32>(from, 16), 16);
}

const held: usize = memory.data(24, 16);

function push(probability: f64, state: usize, token: u32, parent: i32): void {
  if (queueCount == QUEUE_MAX) return;
  store<f64>(held, probability);
  store<u32>(held, <u32>state, 8);
  store<u32>(held, token, 12);
  store<i32>(held, parent, 16);
  let at = queueCount++;
  while (at > 0) {
    const above = (at - 1) >> 1;
    if (!before(held, itemAt(above))) break;
    itemCopy(itemAt(at), itemAt(above));
    at = above;
  }
  itemCopy(itemAt(at), held);
}

// Removes the first item; `held` is free for it afterwards.
function settle(): void {
  queueCount -= 1;
  const moved = itemAt(queueCount);
  let at: i32 = 0;
  while (true) {
    let child = at * 2 + 1;
    if (child >= queueCount) break;
    if (child + 1 < queueCount && before(itemAt(child + 1), itemAt(child))) child += 1;
    if (!before(itemAt(child), moved)) break;
    itemCopy(itemAt(at), itemAt(child));
    at = child;
  }
  itemCopy(itemAt(at), moved);
}

function isProposed(parent: i32, token: u32): bool {
  for (let i: i32 = 0; i < proposedCount; i++) {
    const at = proposed + ((<usize>i) << 3);
    if (load<u32>(at) == token && load<i32>(at, 4) == parent) return true;
  }
  return false;
}

function offer(target: usize, token: u32, scale: f64, parent: i32, check: bool, pMin: f64): void {
  const q = scale * (<f64>countOf(target) - DISCOUNT);
  if (q < pMin || proposedCount == PROPOSED_MAX) return;
  if (check && isProposed(parent, token)) return;
  const at = proposed + ((<usize>proposedCount) << 3);
  proposedCount += 1;
  store<u32>(at, token);
  store<i32>(at, parent, 4);
  push(q, target, token, parent);
}

function expand(v: usize, p: f64, parent: i32, check: bool, ends: u32, pMin: f64): void {
  const link = linkOf(v);
  if (link == 0) return;
  const degree = degreeOf(v);
  const t = total(v, ends);
  const shorter = linkOf(link) != 0;
  if (degree == 0 || t < 1) {
    if (shorter) push(p, link, NONE, parent);
    return;
  }
  const scale = p / t;
  if (degree == 1 || degree > SCAN_MAX) {
    offer(bestTarget(v), bestToken(v), scale, parent, check, pMin);
  } else {
    const end = pairsEnd(v);
    for (let at = pairsBegin(v); at < end; at += 8) {
      const token = load<u32>(at);
      if (token != NONE) offer(load<u32>(at, 4), token, scale, parent, check, pMin);
    }
  }
  const escape = scale * DISCOUNT * <f64>degree;
  if (shorter && escape >= pMin) push(min<f64>(p, escape), link, NONE, parent);
}

// The tree of the most probable continuations, best first: every prefix of the list is the best
// smaller tree. Returns its size.
export function draftTree(match: usize, ends: u32, tokensMax: i32, probabilityMin: f64): i32 {
  queueCount = 0;
  proposedCount = 0;
  expand(match, 1, -1, false, ends, probabilityMin);
  while (outCount < tokensMax && queueCount > 0) {
    const top = itemAt(0);
    const p = load<f64>(top);
    const state: usize = load<u32>(top, 8);
    const token = load<u32>(top, 12);
    const parent = load<i32>(top, 16);
    settle();
    if (token == NONE) {
      expand(state, p, parent, true, parent < 0 ? ends : 0, probabilityMin);
    } else {
      emit(token, parent, min<f64>(1, p));
      expand(state, p, outCount - 1, false, 0, probabilityMin);
    }
  }
  return outCount;
}
