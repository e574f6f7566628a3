// Drafts by back-off over all matching contexts: from the match state, shorter contexts are reached by
// links, continuations by edges. Reads the automaton only. Ties are decided by content (probability,
// parent, lowest token), never by arrival, so replicas draft alike.
// A token's probability, given that its parent is accepted, is its share (blend.ts) seen through
// calibrate.ts.
//
// An instance that learns draws on three sources more, for candidates and as evidence: the text that the
// instance's other requests have written (background.ts), what the sequence itself wrote last (recency.ts), and
// the recovery: where the text that a
// response last parted from would have gone on. A verification step ends with a token that the draft
// did not have, so contexts are shortest just when the next draft begins. A record of what each
// token's probability was made of is kept beside it until the next drafts (fate.ts). Above 500 lines:
// paths and trees share the state of the position that is drafted, all of it in globals of this file.

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
} from "../suffix/node";
import {
  contextAt,
  contextCount,
  contextLength,
  gather,
  interpolated,
  interpolatedBefore,
  ownerSeen,
  scaleAt,
  targetSeen,
} from "./interpolate";
import {
  accepted,
  acceptedPlain,
  FEATURE_BYTES,
  featuresWrite,
  followedPart,
  isLearning,
  kindOfContext,
  lengthClass,
  logitOf,
  oddsOf,
  positionBegin,
  R_NEXT_LENGTH,
  R_NEXT_STATE,
  R_NEXT_TOKEN,
  RECOVERY_OTHER,
  WRITTEN_BY_HISTORY,
  WRITTEN_BY_OWN,
  WRITTEN_BY_SIBLING,
} from "./mixer";
import {
  CROSS_CONTEXT_MAX,
  CROSS_ORDERS,
  CROSS_TOKENS,
  countClass,
  crossNgramFrequency,
  crossNgramState,
  crossNgramsClear,
  crossNgramsLook,
  crossNgramsReady,
  crossNgramToken,
} from "./ngram-cross-request";
import {
  AGES,
  CONTEXT_ONE,
  CONTEXT_SKIP,
  CONTEXT_TWO,
  followerAge,
  followerRun,
  followerState,
  followerToken,
  lastUseClass,
  SEQUENCE_CONTEXTS,
  sequenceNgramsLook,
  sequenceNgramsReady,
} from "./ngram-sequence";
import { isQueueEmpty, itemAt, push, queueClear, settle } from "./queue";

// A class with more continuations proposes its best one only: it says little, and a scan costs.
const SCAN_MAX: u32 = 64;
export const PROBABILITY_FLOOR: f64 = 1.0 / 128.0;
// A continuation must have this part of the share that would be its probability.
const SHARE_PART: f64 = 0.5;
// A candidate of a path that is as probable as this is not compared with what is proposed later.
const SURE: f64 = 0.6;
// What the sequence itself wrote last is a candidate of a path where this part of how often such tokens were accepted
// is more than the best probability so far.
const FOLLOWED_PART: f64 = 0.7;
// Shares sum to one and each is at least SHARE_PART * PROBABILITY_FLOOR, so there are never more.
const CANDIDATES_MAX: i32 = 256;
const CANDIDATE_BYTES: usize = 16;

const candidates: usize = memory.data(16 * 256, 16);
const candidateFeatureArea: usize = memory.data(32 * 256, 16);
let candidateCount: i32 = 0;

// Where a draft goes: token, parent and probability arrays, reasons, its head (fate.ts), and how many
// tokens are out.
let outTokens: usize = 0;
let outParents: usize = 0;
let outProbabilities: usize = 0;
let outFeatures: usize = 0;
let outHead: usize = 0;
let outCount: i32 = 0;
// What the sequence writes as (node.ts).
let own: u32 = 0;
let learns: bool = false;
let hasCrossNgrams: bool = false;
let hasSequenceNgrams: bool = false;
// The sequence, as recency.ts knows it, and its tokens.
let key: u32 = 0;
let now: u32 = 0;
const NO_SOURCE: u32 = 255;
// The three tokens before the one to be drafted, the latest first; and those before the draft.
let first: u32 = 0;
let second: u32 = 0;
let third: u32 = 0;
let startFirst: u32 = 0;
let startSecond: u32 = 0;
let startThird: u32 = 0;
// The state of the text that the response parted from, 0 if none, and how many tokens have agreed with
// it since; at the position to be drafted, and behind each token of a tree.
let recovery: usize = 0;
let agreed: u32 = 0;
// The class of the context that was left for it, and the class of the sequence's recent acceptance.
let left: u32 = 0;
let recent: u32 = 0;
const recoveries: usize = memory.data(32 * 8, 16);
// A recovery that agrees with this many tokens is as good as any.
const AGREED_MAX: u32 = 5;

// A draft's head: how many candidates are kept in it (u32), whether it is a tree's (u32) and, as in a
// reason, where the draft would have begun; then the candidates: reason, token and parent. A tree keeps
// all that it looked at, while there is room; a path the one that was not probable enough.
export const H_COUNT: usize = 0;
export const H_IS_TREE: usize = 4;
const KEPT_MAX: u32 = 64;
export const KEPT_BYTES: usize = 40;
export const K_TOKEN: usize = 32;
export const K_PARENT: usize = 36;
export const HEAD_START: usize = 32;
export const HEAD_BYTES: usize = 32 + 64 * 40;

// The reason of the candidate that was judged last.
const features: usize = memory.data(32, 16);
const bestFeatures: usize = memory.data(32, 16);

// `room` bytes lie between the arrays of words. `source` is what the sequence writes as.
export function draftInto(
  tokens: usize,
  room: usize,
  features: usize,
  head: usize,
  source: u32,
): void {
  outTokens = tokens;
  outParents = tokens + room;
  outProbabilities = tokens + 2 * room;
  outFeatures = features;
  outHead = head;
  outCount = 0;
  learns = isLearning();
  hasCrossNgrams = learns && crossNgramsReady();
  hasSequenceNgrams = learns && sequenceNgramsReady();
  // Who wrote last depends on the interleaving; what does not learn must not.
  own = learns ? source : NO_SOURCE;
}

export function headClear(head: usize): void {
  store<u32>(head, 0, H_COUNT);
  store<u32>(head, 0, H_IS_TREE);
  store<u32>(head, 0, R_NEXT_STATE);
}

// Keeps a candidate behind the draft's token `parent`: what was not drafted is learned from too, else the
// model would know only what it believed in.
function keepCandidate(from: usize, token: u32, parent: i32): void {
  const count = load<u32>(outHead, H_COUNT);
  if (count == KEPT_MAX) return;
  const at = outHead + HEAD_START + <usize>count * KEPT_BYTES;
  featuresCopy(at, from);
  store<u32>(at, token, K_TOKEN);
  store<i32>(at, parent, K_PARENT);
  store<u32>(outHead, count + 1, H_COUNT);
}

// The three tokens that precede the draft, the latest first.
export function draftAfter(a: u32, b: u32, c: u32): void {
  startFirst = a;
  startSecond = b;
  startThird = c;
}

// The sequence that is drafted for (recency.ts) and how many tokens it has.
export function draftOf(sequence: u32, tokens: u32): void {
  key = sequence;
  now = tokens;
}

// The recovery, how many tokens have agreed with it, the class of the context that was left for it; and
// the class of the sequence's recent acceptance (fate.ts).
export function draftRecovers(state: usize, agreeing: u32, length: u32, recently: u32): void {
  recovery = learns ? state : 0;
  agreed = agreeing;
  left = length;
  recent = recently;
}

function emit(token: u32, parent: i32, probability: f64, from: usize): void {
  const at = (<usize>outCount) << 2;
  store<u32>(outTokens + at, token);
  store<i32>(outParents + at, parent);
  store<f32>(outProbabilities + at, <f32>probability);
  if (learns) {
    featuresCopy(featuresAt(outCount), from);
    outCount += 1;
    nextAt(outCount - 1, 0, NONE);
  } else {
    outCount += 1;
  }
}

function featuresAt(index: i32): usize {
  return outFeatures + <usize>index * FEATURE_BYTES;
}

function featuresCopy(to: usize, from: usize): void {
  store<u64>(to, load<u64>(from));
  store<u64>(to, load<u64>(from, 8), 8);
  store<u64>(to, load<u64>(from, 16), 16);
  store<u64>(to, load<u64>(from, 24), 24);
}

// Where the draft would go on behind its token `parent`, whether or not it does.
function nextAt(parent: i32, state: usize, token: u32): void {
  const at = parent < 0 ? outHead : featuresAt(parent);
  store<u16>(at, <u16>min<u32>(contextLength, 65535), R_NEXT_LENGTH);
  store<u32>(at, <u32>state, R_NEXT_STATE);
  store<u32>(at, token, R_NEXT_TOKEN);
}

function writtenBy(target: usize): u32 {
  if (target == 0) return WRITTEN_BY_SIBLING;
  const source = sourceOf(target);
  if (source == HISTORY_SOURCE) return WRITTEN_BY_HISTORY;
  return source == own ? WRITTEN_BY_OWN : WRITTEN_BY_SIBLING;
}

// What the recovery says of the token: how long it has agreed, and whether and how often it goes on so.
function recoveryState(token: u32): u32 {
  if (recovery == 0 || degreeOf(recovery) == 0) return 0;
  const long = min<u32>(agreed, AGREED_MAX);
  const total = countOf(recovery);
  const target = edgeOf(recovery, token);
  if (target == 0) return RECOVERY_OTHER + (long << 2) + fewer(total);
  const count = countOf(target);
  const isBest: u32 = bestToken(recovery) == token ? 1 : 0;
  return (
    1 + ((((long << 1) + isBest) << 2) + fewer(count)) * 4 + min<u32>(countClass(total - count), 3)
  );
}

// 1, 2, 3 and more, from 0 on.
function fewer(count: u32): u32 {
  return min<u32>(max<u32>(count, 1), 4) - 1;
}

// What is alike for all candidates of the position: the classes of recent acceptance and of the recovery as a
// reason holds them.
let late: u32 = 0;

function positionAt(): void {
  const recovered: u32 = recovery == 0 ? 0 : 1 + left + (agreed > 0 ? 8 : 0);
  late = recent | (recovered << 8);
  positionBegin(recent, recovered, first);
  if (hasSequenceNgrams) sequenceNgramsLook(key, first, second, third, now);
  if (hasCrossNgrams) lookBack();
}

// The probability of a token, whose share interpolated has just found; `ends` as in gather. Writes `reason`.
function judged(token: u32, share: f64, isLikeliest: bool, ends: u32): f64 {
  const logit = logitOf(share);
  if (!learns) return acceptedPlain(logit, contextLength);
  const kind = kindOfContext(contextLength, isLikeliest, writtenBy(targetSeen));
  let total: u32 = 0;
  if (ownerSeen >= 0) {
    const v = contextAt(ownerSeen);
    const several: u32 = degreeOf(v) > 1 ? 1 : 0;
    total = min<u32>(15, (countClass(countOf(v) - ends) << 1) + several);
  }
  let sets = kind | (total << 8);
  let seen: u32 = 0;
  if (hasSequenceNgrams) {
    const last = (lastUseClass(token) << 1) + (isLikeliest ? 1 : 0);
    sets |= (last << 16) | (followerState(CONTEXT_SKIP, token) << 24);
    const word = followerState(CONTEXT_ONE, token);
    if (word != 0) seen = (word * AGES + followerAge()) << 16;
    seen |= followerState(CONTEXT_TWO, token) << 24;
  }
  if (hasCrossNgrams) seen |= crossNgramState(1, token) | (crossNgramState(2, token) << 8);
  const recovering = recoveryState(token);
  const q = accepted(<f32>logit, sets, seen, recovering, token);
  featuresWrite(features, <f32>logit, sets, seen, recovering, late);
  return q;
}

// Where a token leads that no interpolated context has: from the longest that has it, or the root.
function fallback(s: usize, token: u32): usize {
  let v = s;
  while (true) {
    const target = edgeOf(v, token);
    if (target != 0) return target;
    const link = linkOf(v);
    if (link == 0) return v;
    v = link;
  }
}

function recover(token: u32): void {
  if (recovery == 0) return;
  recovery = edgeOf(recovery, token);
  agreed += 1;
}

// The candidates of the position, each looked at once.
const tried: usize = memory.data(16 * 4, 16);
let triedCount: i32 = 0;

function isTried(token: u32): bool {
  for (let i: i32 = 0; i < triedCount; i++) {
    if (load<u32>(tried + ((<usize>i) << 2)) == token) return true;
  }
  store<u32>(tried + ((<usize>triedCount) << 2), token);
  triedCount += 1;
  return false;
}

let best: u32 = NONE;
let bestQ: f64 = 0;
let bestNext: usize = 0;

function consider(token: u32, isLikeliest: bool, ends: u32): void {
  if (token == NONE || isTried(token)) return;
  const q = judged(token, interpolated(token), isLikeliest, ends);
  if (q < bestQ || (q == bestQ && token >= best)) return;
  best = token;
  bestQ = q;
  bestNext = targetSeen;
  if (learns) featuresCopy(bestFeatures, features);
}

// The candidates of a path: each context's best continuation, and what own words, recovery and background propose,
// until one is more probable than all others can be. A shorter context's is looked at if its share in that
// context alone is at least `shareMin`.
function choose(s: usize, ends: u32, shareMin: f64): void {
  best = NONE;
  bestQ = 0;
  triedCount = 0;
  for (let j: i32 = 0; j < contextCount; j++) {
    const v = contextAt(j);
    if (j != 0 && learns && scaleAt(j) * <f64>countOf(bestTarget(v)) < shareMin) continue;
    consider(bestToken(v), !learns || j == 0, ends);
    if (learns && bestQ >= SURE) return;
  }
  if (hasSequenceNgrams) {
    for (let context: u32 = 0; context < SEQUENCE_CONTEXTS; context++) {
      const run = followerRun(context);
      if (run == 0 || bestQ >= SURE) continue;
      if (followedPart(context, run, followerAge()) * FOLLOWED_PART > bestQ)
        consider(followerToken(context, false), false, ends);
    }
  }
  if (recovery != 0) consider(bestToken(recovery), false, ends);
  if (hasCrossNgrams) {
    for (let order: i32 = <i32>CROSS_ORDERS - 1; order >= 0 && bestQ < SURE; order--) {
      if (crossNgramFrequency(order) > bestQ) consider(crossNgramToken(order, 0), false, ends);
    }
  }
  if (best != NONE && bestNext == 0) bestNext = fallback(s, best);
}

// One chain of the most probable tokens. Returns its length.
export function draftPath(match: usize, ends: u32, tokensMax: i32, probabilityMin: f64): i32 {
  let s = match;
  let p: f64 = 1;
  let open = ends;
  first = startFirst;
  second = startSecond;
  third = startThird;
  while (outCount < tokensMax) {
    gather(s, open);
    if (learns) positionAt();
    choose(s, open, (probabilityMin / p) * SHARE_PART);
    if (best == NONE) break;
    if (learns) nextAt(outCount - 1, bestNext, best);
    p *= bestQ;
    if (p < probabilityMin) {
      if (learns) keepCandidate(bestFeatures, best, outCount - 1);
      break;
    }
    emit(best, outCount - 1, p, bestFeatures);
    recover(best);
    s = bestNext;
    open = 0;
    third = second;
    second = first;
    first = best;
  }
  return outCount;
}

function candidateFeatures(index: i32): usize {
  return candidateFeatureArea + <usize>index * FEATURE_BYTES;
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
  for (let j: i32 = 0; j < contextCount; j++) {
    const v = contextAt(j);
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

function candidateAnyway(token: u32): void {
  if (token == NONE || candidateCount == CANDIDATES_MAX) return;
  for (let i: i32 = 0; i < candidateCount; i++) {
    if (load<u32>(candidateAt(i), 8) == token) return;
  }
  store<u32>(candidateAt(candidateCount), token, 8);
  candidateCount += 1;
}

// What own words, recovery and background propose.
function candidatesBeside(): void {
  if (hasSequenceNgrams) {
    for (let context: u32 = 0; context < SEQUENCE_CONTEXTS; context++) {
      candidateAnyway(followerToken(context, false));
      candidateAnyway(followerToken(context, true));
    }
  }
  if (recovery != 0) candidateAnyway(bestToken(recovery));
  if (!hasCrossNgrams) return;
  for (let order: i32 = <i32>CROSS_ORDERS - 1; order >= 0; order--) {
    for (let place: u32 = 0; place < CROSS_TOKENS; place++) {
      candidateAnyway(crossNgramToken(order, place));
    }
  }
}

// The largest share of a candidate; each candidate: share, token, the index of the context that owns it.
function sharesOf(): f64 {
  let largest: f64 = 0;
  for (let i: i32 = 0; i < candidateCount; i++) {
    const share = interpolated(load<u32>(candidateAt(i), 8));
    store<f64>(candidateAt(i), share);
    store<i32>(candidateAt(i), ownerSeen, 12);
    largest = max<f64>(largest, share);
  }
  return largest;
}

// Long contexts of the group say it all: the background's cache misses are saved.
function lookBack(): void {
  if (contextLength >= CROSS_CONTEXT_MAX) crossNgramsClear();
  else crossNgramsLook(first, second, third);
}

// The tokens behind the draft's token `parent`, and the recovery there.
function goTo(parent: i32): void {
  const one = parent;
  const two = one < 0 ? -1 : load<i32>(outParents + ((<usize>one) << 2));
  const three = two < 0 ? -1 : load<i32>(outParents + ((<usize>two) << 2));
  first = one < 0 ? startFirst : drafted(one);
  second = one < 0 ? startSecond : two < 0 ? startFirst : drafted(two);
  third = one < 0 ? startThird : two < 0 ? startSecond : three < 0 ? startFirst : drafted(three);
  if (one < 0) return;
  // Place 0 holds the recovery before the draft.
  const at = recoveries + ((<usize>(two + 1)) << 3);
  recovery = load<u32>(at);
  agreed = load<u32>(at, 4);
  recover(first);
}

function drafted(index: i32): u32 {
  return load<u32>(outTokens + ((<usize>index) << 2));
}

function expand(s: usize, p: f64, parent: i32, ends: u32, probabilityMin: f64): void {
  gather(s, ends);
  if (learns) {
    goTo(parent);
    const at = recoveries + ((<usize>(parent + 1)) << 3);
    store<u32>(at, <u32>recovery);
    store<u32>(at, agreed, 4);
    positionAt();
  }
  candidatesFrom((probabilityMin / p) * SHARE_PART);
  if (learns) candidatesBeside();
  const largest = sharesOf();
  let all: f64 = 1;
  for (let i: i32 = 0; i < candidateCount; i++) {
    const at = candidateAt(i);
    const token = load<u32>(at, 8);
    const share = load<f64>(at);
    const owner = load<i32>(at, 12);
    interpolatedBefore(owner < 0 ? 0 : edgeOf(contextAt(owner), token), owner);
    const q = judged(token, share, share == largest, ends);
    store<f64>(at, q);
    store<u32>(at, <u32>targetSeen, 12);
    if (!learns) continue;
    all += oddsOf(q);
    featuresCopy(candidateFeatures(i), features);
  }
  bestQ = 0;
  best = NONE;
  for (let i: i32 = 0; i < candidateCount; i++) {
    const at = candidateAt(i);
    const token = load<u32>(at, 8);
    // Only one of them can come: together they take a part of one.
    const q = learns ? oddsOf(load<f64>(at)) / all : load<f64>(at);
    const from = candidateFeatures(i);
    if (learns) keepCandidate(from, token, parent);
    const isBest = q > bestQ;
    if (!isBest && p * q < probabilityMin) continue;
    const seen: usize = load<u32>(at, 12);
    const target = seen == 0 ? fallback(s, token) : seen;
    if (isBest) {
      bestQ = q;
      best = token;
      bestNext = target;
    }
    if (p * q >= probabilityMin) push(p * q, target, token, parent, from);
  }
  if (learns && best != NONE) nextAt(parent, bestNext, best);
}

// The tree of the most probable continuations, best first: every prefix of the list is the best
// smaller tree. Returns its size.
export function draftTree(match: usize, ends: u32, tokensMax: i32, probabilityMin: f64): i32 {
  queueClear();
  store<u32>(outHead, 1, H_IS_TREE);
  expand(match, 1, -1, ends, probabilityMin);
  while (outCount < tokensMax && !isQueueEmpty()) {
    const top = itemAt(0);
    const p = load<f64>(top);
    const state: usize = load<u32>(top, 8);
    emit(load<u32>(top, 12), load<i32>(top, 16), p, top + 24);
    settle();
    if (outCount < tokensMax) expand(state, p, outCount - 1, 0, probabilityMin);
  }
  return outCount;
}
