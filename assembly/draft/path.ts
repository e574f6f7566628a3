// Drafts a path: one chain of the most probable tokens. From the match state, shorter contexts are reached by links,
// continuations by edges; the n-gram caches and match recovery propose further candidates. Reads the automaton only.
// Ties are decided by content (probability, lowest token), never by arrival, so replicas draft alike.

import { bestTarget, bestToken, countOf, NONE } from "../suffix/node";
import { judge, positionLook } from "./candidate";
import { draft, draftContinues, draftEmit } from "./draft";
import { candidateKeep, candidatesEnd, secondPlace } from "./drafts";
import { FEATURE_BYTES, featuresCopy } from "./feature-vector";
import {
  contextAt,
  contextCount,
  interpolated,
  scaleAt,
  stateBehind,
  targetSeen,
} from "./interpolate";
import { stateFrequency } from "./mixer";
import { State } from "./model";
import { CROSS_ORDERS, crossNgramFrequency, crossNgramToken } from "./ngram-cross-request";
import {
  AGES,
  CONTEXT_ONE,
  CONTEXT_TWO,
  followerAge,
  followerRun,
  followerToken,
  SEQUENCE_CONTEXTS,
} from "./ngram-sequence";
import { position, positionAdvance } from "./position";

// A continuation's interpolated probability must be this part of the least probability asked for.
export const INTERPOLATED_PART: f64 = 0.5;
// A candidate this probable is taken without a look at those that are proposed after it.
const SURE: f64 = 0.6;
// A follower of the sequence's own contexts is a candidate where this part of its state's frequency is more than the best
// probability so far.
const FOLLOWER_PART: f64 = 0.7;

// The candidates of the position, each judged once: at most contexts, followers, recovery and cross-request orders.
const triedTokens: usize = memory.data(16 * 4, 16);
const triedProbabilities: usize = memory.data(16 * 8, 16);
export let triedCount: i32 = 0;
// The best of them, its probability, and where it leads, 0 if no context of the group has it.
export let best: u32 = NONE;
export let bestP: f64 = 0;
export let bestTargetSeen: usize = 0;
// The second best, from which the model learns too.
let second: u32 = NONE;
let secondP: f64 = 0;
// Feature vectors of the best, of the second best and of the candidate being judged: in any order those places of the
// draft where its next candidate and that one's second belong, and `spare`.
const spare: usize = memory.data(FEATURE_BYTES, 16);
let bestFeatures: usize = 0;
let secondFeatures: usize = 0;
let freeFeatures: usize = 0;

export function triedToken(index: i32): u32 {
  return load<u32>(triedTokens + ((<usize>index) << 2));
}

export function triedProbability(index: i32): f64 {
  return load<f64>(triedProbabilities + ((<usize>index) << 3));
}

export function isTried(token: u32): bool {
  for (let i: i32 = 0; i < triedCount; i++) if (triedToken(i) == token) return true;
  return false;
}

function consider(token: u32, isLikeliest: bool): void {
  if (token == NONE || isTried(token)) return;
  const features = freeFeatures;
  const p = judge(features, token, interpolated(token), isLikeliest);
  store<u32>(triedTokens + ((<usize>triedCount) << 2), token);
  store<f64>(triedProbabilities + ((<usize>triedCount) << 3), p);
  triedCount += 1;
  if (p < bestP || (p == bestP && token >= best)) {
    if (p > secondP || (p == secondP && token < second)) secondSet(token, p, features);
    return;
  }
  secondSet(best, bestP, bestFeatures);
  best = token;
  bestP = p;
  bestTargetSeen = targetSeen;
  bestFeatures = features;
}

function secondSet(token: u32, p: f64, features: usize): void {
  freeFeatures = secondFeatures;
  second = token;
  secondP = p;
  secondFeatures = features;
}

// Keeps both for verification feedback. The first candidate of a position is in the first place if it is one of them.
export function keep(): void {
  if (bestFeatures == spare) {
    featuresCopy(freeFeatures, spare);
    bestFeatures = freeFeatures;
  } else if (second != NONE && secondFeatures == spare) featuresCopy(freeFeatures, spare);
  if (bestFeatures == candidatesEnd(draft.head)) candidateKeep(draft.head, best, second);
  else candidateKeep(draft.head, second, best);
}

// The most probable candidate, or NONE: each context's best continuation, the per-sequence followers, what the recovery
// and the cross-request cache propose, until one is more probable than all others can be. A shorter context's
// continuation is looked at if its part of the interpolated probability alone is at least `partMin`.
export function choose(partMin: f64): u32 {
  best = NONE;
  bestP = 0;
  second = NONE;
  secondP = 0;
  freeFeatures = candidatesEnd(draft.head);
  secondFeatures = secondPlace(freeFeatures);
  bestFeatures = spare;
  triedCount = 0;
  for (let j: i32 = 0; j < contextCount; j++) {
    const v = contextAt(j);
    if (j != 0 && draft.learns && scaleAt(j) * <f64>countOf(bestTarget(v)) < partMin) continue;
    consider(bestToken(v), j == 0);
    if (draft.learns && bestP >= SURE) return best;
  }
  if (draft.hasSequenceNgrams) considerFollowers();
  if (position.recovery != 0) consider(bestToken(position.recovery), false);
  if (draft.hasCrossNgrams) {
    for (let order: i32 = <i32>CROSS_ORDERS - 1; order >= 0 && bestP < SURE; order--) {
      if (crossNgramFrequency(order) > bestP) consider(crossNgramToken(order, 0), false);
    }
  }
  return best;
}

function considerFollowers(): void {
  for (let context: u32 = 0; context < SEQUENCE_CONTEXTS; context++) {
    const run = followerRun(context);
    if (run == 0 || bestP >= SURE) continue;
    const family: u32 = context == CONTEXT_TWO ? State.TWO : State.SKIP;
    const state: u32 =
      context == CONTEXT_ONE ? State.ONE + run * AGES + followerAge() : family + run;
    if (stateFrequency(state) * FOLLOWER_PART > bestP)
      consider(followerToken(context, false), false);
  }
}

// Returns the draft's length.
export function draftPath(): i32 {
  let p: f64 = 1;
  while (draft.count < draft.tokensMax) {
    positionLook();
    const token = choose((draft.probabilityMin / p) * INTERPOLATED_PART);
    if (token == NONE) break;
    const state = bestTargetSeen == 0 ? stateBehind(position.state, token) : bestTargetSeen;
    const last = draft.count - 1;
    draftContinues(last, state, token);
    if (draft.learns) keep();
    p *= bestP;
    if (p < draft.probabilityMin) break;
    draftEmit(token, last, p);
    positionAdvance(token, state);
  }
  return draft.count;
}
