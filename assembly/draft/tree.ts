// Drafts a tree: the most probable continuations, best first, so that every prefix of the list is the best smaller tree.
// Candidates are those of a path (path.ts), but all of them: they compete, and their odds are divided by one plus the sum
// of all. Ties are decided by content (probability, parent, lowest token), never by arrival.

import { DRAFT_TOKENS_MAX, TREE_TOKENS_MAX } from "../abi";
import {
  bestTarget,
  bestToken,
  countOf,
  degreeOf,
  edgeOf,
  NONE,
  pairsBegin,
  pairsEnd,
} from "../suffix/node";
import { judge, positionLook } from "./candidate";
import { draft, draftContinues, draftEmit, draftParent, draftToken } from "./draft";
import { candidateKeep, candidatesEnd, candidatesFull, continuationOf } from "./drafts";
import { FEATURE_BYTES, featuresCopy } from "./feature-vector";
import {
  contextAt,
  contextCount,
  interpolated,
  interpolatedBefore,
  ownerSeen,
  scaleAt,
  stateBehind,
  targetSeen,
} from "./interpolate";
import { oddsOf } from "./logistic";
import { CROSS_ORDERS, CROSS_TOKENS, crossNgramToken } from "./ngram-cross-request";
import { followerToken, SEQUENCE_CONTEXTS } from "./ngram-sequence";
import { INTERPOLATED_PART } from "./path";
import {
  POSITION_BYTES,
  position,
  positionAdvance,
  positionKeep,
  positionPart,
  positionTake,
} from "./position";
import { isQueueEmpty, itemAt, push, queueClear, settle } from "./queue";

// A context with more continuations proposes only its best one: it predicts little, and a scan is expensive.
const SCAN_MAX: u32 = 64;
// Interpolated probabilities sum to one and each is at least INTERPOLATED_PART times the least probability, so there
// are never more.
const CANDIDATES_MAX: i32 = 256;

// A candidate of the position being expanded: its interpolated probability, then that of the model, and where it leads in
// the longest context that has it (interpolate.ts); its feature vector follows.
@unmanaged
class Candidate {
  p: f64;
  token: u32;
  target: usize;
  owner: i32;
}

const CANDIDATE_BYTES: usize = offsetof<Candidate>() + FEATURE_BYTES;
const candidates: usize = memory.data(256 * CANDIDATE_BYTES, 16);
let candidateCount: i32 = 0;

// The position behind each token of the draft, and before the first.
const positions: usize = memory.data((TREE_TOKENS_MAX + 1) * POSITION_BYTES, 16);
// Tokens up to each token of the draft, and up to the first.
const depths: usize = memory.data(TREE_TOKENS_MAX + 1);

function depthOf(index: i32): u32 {
  return load<u8>(depths + <usize>(index + 1));
}

function candidateAt(index: i32): Candidate {
  return changetype<Candidate>(candidates + <usize>index * CANDIDATE_BYTES);
}

function featuresOf(candidate: Candidate): usize {
  return changetype<usize>(candidate) + offsetof<Candidate>();
}

function propose(token: u32): void {
  if (token == NONE || candidateCount == CANDIDATES_MAX) return;
  for (let i: i32 = 0; i < candidateCount; i++) {
    if (candidateAt(i).token == token) return;
  }
  candidateAt(candidateCount).token = token;
  candidateCount += 1;
}

// All continuations of every context whose part of the interpolated probability alone is at least `partMin`.
function proposeContinuations(partMin: f64): void {
  for (let j: i32 = 0; j < contextCount; j++) {
    const v = contextAt(j);
    const scale = scaleAt(j);
    if (scale * <f64>countOf(bestTarget(v)) < partMin) continue;
    const degree = degreeOf(v);
    if (degree == 1 || degree > SCAN_MAX) {
      propose(bestToken(v));
      continue;
    }
    const end = pairsEnd(v);
    for (let at = pairsBegin(v); at < end; at += 8) {
      const token = load<u32>(at);
      if (token != NONE && scale * <f64>countOf(load<u32>(at, 4)) >= partMin) propose(token);
    }
  }
}

// What the n-gram caches and match recovery propose.
function proposeOthers(): void {
  if (draft.hasSequenceNgrams) {
    for (let context: u32 = 0; context < SEQUENCE_CONTEXTS; context++) {
      propose(followerToken(context, false));
      propose(followerToken(context, true));
    }
  }
  if (position.recovery != 0) propose(bestToken(position.recovery));
  if (!draft.hasCrossNgrams) return;
  for (let order: i32 = <i32>CROSS_ORDERS - 1; order >= 0; order--) {
    for (let place: u32 = 0; place < CROSS_TOKENS; place++) propose(crossNgramToken(order, place));
  }
}

// Judges all candidates; returns one plus the sum of their odds.
function judgeAll(): f64 {
  let largest: f64 = 0;
  for (let i: i32 = 0; i < candidateCount; i++) {
    const one = candidateAt(i);
    one.p = interpolated(one.token);
    one.target = targetSeen;
    one.owner = ownerSeen;
    largest = max<f64>(largest, one.p);
  }
  let all: f64 = 1;
  for (let i: i32 = 0; i < candidateCount; i++) {
    const one = candidateAt(i);
    interpolatedBefore(one.target, one.owner);
    one.p = judge(featuresOf(one), one.token, one.p, one.p == largest);
    all += oddsOf(one.p);
  }
  return all;
}

// The position behind the token `parent`, in `state`.
function goTo(parent: i32, state: usize): void {
  if (parent >= 0) {
    const before = draftParent(parent);
    positionTake(positions + <usize>(before + 1) * POSITION_BYTES);
    positionAdvance(draftToken(parent), state);
    const likeliest = continuationOf(draft.head, before);
    if (likeliest.token != draftToken(parent))
      positionPart(likeliest.state, likeliest.length, depthOf(before));
  }
  positionKeep(positions + <usize>(parent + 1) * POSITION_BYTES);
}

function keep(candidate: Candidate, parent: i32): void {
  if (candidatesFull(draft.head)) return;
  featuresCopy(candidatesEnd(draft.head), featuresOf(candidate));
  candidateKeep(draft.head, candidate.token, <u32>parent);
}

// Queues the continuations of the token `parent`, of probability `p`, which leads to `state`.
function expand(parent: i32, state: usize, p: f64): void {
  goTo(parent, state);
  positionLook();
  candidateCount = 0;
  proposeContinuations((draft.probabilityMin / p) * INTERPOLATED_PART);
  if (draft.learns) proposeOthers();
  const all = judgeAll();
  let best: u32 = NONE;
  let bestP: f64 = 0;
  let bestState: usize = 0;
  for (let i: i32 = 0; i < candidateCount; i++) {
    const one = candidateAt(i);
    const q = draft.learns ? oddsOf(one.p) / all : one.p;
    if (draft.learns) keep(one, parent);
    const isBest = q > bestP;
    if (!isBest && p * q < draft.probabilityMin) continue;
    const target = one.target == 0 ? stateBehind(state, one.token) : one.target;
    if (isBest) {
      bestP = q;
      best = one.token;
      bestState = target;
    }
    if (p * q >= draft.probabilityMin) push(p * q, target, one.token, parent);
  }
  if (best != NONE) draftContinues(parent, bestState, best);
}

// Returns the draft's size.
export function draftTree(): i32 {
  queueClear();
  expand(-1, position.state, 1);
  while (draft.count < draft.tokensMax && !isQueueEmpty()) {
    const top = itemAt(0);
    const p = top.probability;
    const state = top.state;
    draftEmit(top.token, top.parent, p);
    settle();
    const depth = depthOf(draftParent(draft.count - 1)) + 1;
    store<u8>(depths + <usize>draft.count, <u8>depth);
    if (depth < <u32>DRAFT_TOKENS_MAX && draft.count < draft.tokensMax)
      expand(draft.count - 1, state, p);
  }
  return draft.count;
}
