// Drafts by back-off over all matching contexts: from the match state, shorter contexts are reached by
// links, continuations by edges. Reads the automaton only. Ties are decided by content (probability,
// parent, lowest token), never by arrival, so replicas draft alike.
//
// The share of token a: contexts v0 (the longest that has been continued), v1, ... with T(v) continued
// occurrences and deg(v) different continuations are interpolated as by Witten and Bell (1991):
//
//   share(a) = sum over j of w_j count(v_j a) / (T(v_j) + deg(v_j)),  w_(j+1) = w_j deg / (T + deg)
//
// What is left after the last context counts for any token alike (SHARE_REST of it). The probability
// that a draft token is accepted, given that its parent is, is that share seen through calibrate.ts.
// What a token's probability was made of is kept beside it until the next drafts, so that calibrate.ts
// can learn from its fate.

import {
  accepted,
  isLearning,
  learn,
  logitOf,
  WRITTEN_BY_HISTORY,
  WRITTEN_BY_OWN,
  WRITTEN_BY_SIBLING,
  weightsOf,
} from "./calibrate";
import {
  bestTarget,
  bestToken,
  countOf,
  degreeOf,
  edgeOf,
  HISTORY_SOURCE,
  lenOf,
  linkOf,
  NONE,
  pairsBegin,
  pairsEnd,
  sourceOf,
} from "./node";

// Contexts interpolated for one token.
const CLASSES: i32 = 4;
const SHARE_REST: f64 = 0.05;
// A context that could add less than this to a share is not worth its cache misses.
const WEIGHT_MIN: f64 = 0.03;
// A class with more continuations proposes its best one only: it says little, and a scan costs.
const SCAN_MAX: u32 = 64;
export const PROBABILITY_FLOOR: f64 = 1.0 / 128.0;
// A tree's continuation must have this part of the share that would be its probability.
const SHARE_PART: f64 = 0.5;
// Shares sum to one and each is at least SHARE_PART * PROBABILITY_FLOOR, so there are never more.
const CANDIDATES_MAX: i32 = 256;
const CANDIDATE_BYTES: usize = 16;
// Far more than can wait at PROBABILITY_FLOOR each.
const QUEUE_MAX: i32 = 1024;
const ITEM_BYTES: usize = 24;

const classes: usize = memory.data(4 * 4, 16);
// Weight over (T + deg), so that a count times it is the share.
const scales: usize = memory.data(4 * 8, 16);
const candidates: usize = memory.data(16 * 256, 16);
const queue: usize = memory.data(24 * 1024, 16);
let classCount: i32 = 0;
let candidateCount: i32 = 0;
let rest: f64 = 0;
let contextLength: u32 = 0;
let queueCount: i32 = 0;

// Where a draft goes: token, parent and probability arrays, and how many are out.
let outTokens: usize = 0;
let outParents: usize = 0;
let outProbabilities: usize = 0;
let outReasons: usize = 0;
let outCount: i32 = 0;
// The token that the draft follows, and what the sequence writes as (node.ts).
let before: u32 = 0;
let own: u32 = 0;
const NO_SOURCE: u32 = 255;
const SET_BITS: u32 = 63;

// `room` bytes lie between the arrays. The last array holds reasons: a logit whose lowest six bits
// are its set of weights.
export function draftInto(tokens: usize, room: usize, tokenBefore: u32, source: u32): void {
  outTokens = tokens;
  outParents = tokens + room;
  outProbabilities = tokens + 2 * room;
  outReasons = tokens + 3 * room;
  outCount = 0;
  before = tokenBefore;
  // Who wrote last depends on the interleaving; what does not learn must not.
  own = isLearning() ? source : NO_SOURCE;
}

function emit(token: u32, parent: i32, probability: f64, reason: u32): void {
  const at = (<usize>outCount) << 2;
  store<u32>(outTokens + at, token);
  store<i32>(outParents + at, parent);
  store<f32>(outProbabilities + at, <f32>probability);
  store<u32>(outReasons + at, reason);
  outCount += 1;
}

function writtenBy(target: usize): u32 {
  const source = sourceOf(target);
  if (source == HISTORY_SOURCE) return WRITTEN_BY_HISTORY;
  return source == own ? WRITTEN_BY_OWN : WRITTEN_BY_SIBLING;
}

function reasonOf(logit: f64, set: u32): u32 {
  return (reinterpret<u32>(<f32>logit) & ~SET_BITS) | set;
}

// Learns from the draft of `count` tokens at `tokens` that `token` followed its token `parent` (-1:
// the one before the draft). Returns the draft token that it was, -1 if it was none of them.
export function draftFate(
  tokens: usize,
  room: usize,
  count: i32,
  parent: i32,
  tokenBefore: u32,
  token: u32,
): i32 {
  const after = parent < 0 ? tokenBefore : load<u32>(tokens + ((<usize>parent) << 2));
  let found: i32 = -1;
  for (let i = parent + 1; i < count; i++) {
    const at = tokens + ((<usize>i) << 2);
    if (load<i32>(at + room) != parent) continue;
    const drafted = load<u32>(at);
    const reason = load<u32>(at + 3 * room);
    learn(
      <f64>reinterpret<f32>(reason & ~SET_BITS),
      reason & SET_BITS,
      after,
      drafted,
      drafted == token,
    );
    if (drafted == token) found = i;
  }
  return found;
}

function classAt(index: i32): usize {
  return load<u32>(classes + ((<usize>index) << 2));
}

function scaleAt(index: i32): f64 {
  return load<f64>(scales + ((<usize>index) << 3));
}

// Finds the first CLASSES contexts from s on that have been continued, and their weights. `ends` of
// each context's occurrences have no continuation.
function gather(s: usize, ends: u32): void {
  let weight: f64 = 1;
  let v = s;
  let link = linkOf(v);
  classCount = 0;
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
let targetSeen: usize = 0;

// The share of a continuation; sets `targetSeen`.
function shareOf(token: u32): f64 {
  let share: f64 = 0;
  targetSeen = 0;
  for (let j: i32 = 0; j < classCount; j++) {
    const target = edgeOf(classAt(j), token);
    if (target == 0) continue;
    share += scaleAt(j) * <f64>countOf(target);
    if (targetSeen == 0) targetSeen = target;
  }
  return share + rest;
}

// One chain of the most probable tokens. Returns its length.
export function draftPath(match: usize, ends: u32, tokensMax: i32, probabilityMin: f64): i32 {
  let s = match;
  let p: f64 = 1;
  let open = ends;
  let after = before;
  while (outCount < tokensMax) {
    gather(s, open);
    let best: u32 = NONE;
    let bestQ: f64 = 0;
    let bestReason: u32 = 0;
    let next: usize = 0;
    for (let j: i32 = 0; j < classCount; j++) {
      const token = bestToken(classAt(j));
      if (token == best) continue;
      const logit = logitOf(shareOf(token));
      const set = weightsOf(contextLength, true, writtenBy(targetSeen));
      const q = accepted(logit, set, after, token);
      if (q > bestQ || (q == bestQ && token < best)) {
        best = token;
        bestQ = q;
        bestReason = reasonOf(logit, set);
        next = targetSeen;
      }
    }
    if (best == NONE) break;
    p *= bestQ;
    if (p < probabilityMin) break;
    emit(best, outCount - 1, p, bestReason);
    s = next;
    open = 0;
    after = best;
  }
  return outCount;
}

// An item of the queue: probability, state, token, parent, reason.
function isBefore(a: usize, b: usize): bool {
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
  store<u64>(to, load<u64>(from, 16), 16);
}

const held: usize = memory.data(24, 16);

function push(probability: f64, state: usize, token: u32, parent: i32, reason: u32): void {
  if (queueCount == QUEUE_MAX) return;
  store<f64>(held, probability);
  store<u32>(held, <u32>state, 8);
  store<u32>(held, token, 12);
  store<i32>(held, parent, 16);
  store<u32>(held, reason, 20);
  let at = queueCount++;
  while (at > 0) {
    const above = (at - 1) >> 1;
    if (!isBefore(held, itemAt(above))) break;
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
    if (child + 1 < queueCount && isBefore(itemAt(child + 1), itemAt(child))) child += 1;
    if (!isBefore(itemAt(child), moved)) break;
    itemCopy(itemAt(at), itemAt(child));
    at = child;
  }
  itemCopy(itemAt(at), moved);
}

function candidateAt(index: i32): usize {
  return candidates + <usize>index * CANDIDATE_BYTES;
}

// Adds a continuation of class j if its share in that class alone is at least `shareMin` and no
// longer context has proposed it.
function candidate(j: i32, token: u32, target: usize, shareMin: f64): void {
  const share = scaleAt(j) * <f64>countOf(target);
  if (share < shareMin || candidateCount == CANDIDATES_MAX) return;
  for (let i: i32 = 0; i < candidateCount; i++) {
    if (load<u32>(candidateAt(i), 8) == token) return;
  }
  store<u32>(candidateAt(candidateCount), token, 8);
  candidateCount += 1;
}

// All continuations worth a look, of every context.
function candidatesFrom(shareMin: f64): void {
  candidateCount = 0;
  for (let j: i32 = 0; j < classCount; j++) {
    const v = classAt(j);
    const target = bestTarget(v);
    if (scaleAt(j) * <f64>countOf(target) < shareMin) continue;
    const degree = degreeOf(v);
    if (degree == 1 || degree > SCAN_MAX) {
      candidate(j, bestToken(v), target, shareMin);
      continue;
    }
    const end = pairsEnd(v);
    for (let at = pairsBegin(v); at < end; at += 8) {
      const token = load<u32>(at);
      if (token != NONE) candidate(j, token, load<u32>(at, 4), shareMin);
    }
  }
}

// The largest share of a candidate; each candidate: share, token, target.
function sharesOf(): f64 {
  let largest: f64 = 0;
  for (let i: i32 = 0; i < candidateCount; i++) {
    const share = shareOf(load<u32>(candidateAt(i), 8));
    store<f64>(candidateAt(i), share);
    store<u32>(candidateAt(i), <u32>targetSeen, 12);
    largest = max<f64>(largest, share);
  }
  return largest;
}

function expand(s: usize, p: f64, parent: i32, ends: u32, after: u32, probabilityMin: f64): void {
  gather(s, ends);
  candidatesFrom((probabilityMin / p) * SHARE_PART);
  const largest = sharesOf();
  for (let i: i32 = 0; i < candidateCount; i++) {
    const token = load<u32>(candidateAt(i), 8);
    const share = load<f64>(candidateAt(i));
    const target: usize = load<u32>(candidateAt(i), 12);
    const logit = logitOf(share);
    const set = weightsOf(contextLength, share == largest, writtenBy(target));
    const q = p * accepted(logit, set, after, token);
    if (q >= probabilityMin) push(q, target, token, parent, reasonOf(logit, set));
  }
}

// The tree of the most probable continuations, best first: every prefix of the list is the best
// smaller tree. Returns its size.
export function draftTree(match: usize, ends: u32, tokensMax: i32, probabilityMin: f64): i32 {
  queueCount = 0;
  expand(match, 1, -1, ends, before, probabilityMin);
  while (outCount < tokensMax && queueCount > 0) {
    const top = itemAt(0);
    const p = load<f64>(top);
    const state: usize = load<u32>(top, 8);
    const token = load<u32>(top, 12);
    emit(token, load<i32>(top, 16), p, load<u32>(top, 20));
    settle();
    if (outCount < tokensMax) expand(state, p, outCount - 1, 0, token, probabilityMin);
  }
  return outCount;
}
