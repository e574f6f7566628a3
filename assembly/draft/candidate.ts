// Judges the candidates of a position: computes a candidate's feature vector and from that its probability. The classes
// of all selectors and adaptive states are computed here, a line each.

import { countOf, degreeOf, HISTORY_SOURCE, NONE, sourceOf } from "../suffix/node";
import { countClass, lengthClass } from "./classes";
import { draft } from "./draft";
import { FEATURE_BYTES, logitSet, sharedCopy, stateSet, vectorSet } from "./feature-vector";
import { contextAt, contextLength, contextsFind, ownerSeen, targetSeen } from "./interpolate";
import { stretch } from "./logistic";
import { recoveredClass, recoveryState } from "./match-recovery";
import { plainProbability, probabilityOf, sharedBegin } from "./mixer";
import {
  CONTEXT_KINDS,
  CONTINUED_CLASSES,
  Input,
  Selector,
  State,
  TOKEN_VECTORS_BITS,
  Vector,
} from "./model";
import {
  CROSS_CONTEXT_MAX,
  crossNgramState,
  crossNgramsClear,
  crossNgramsLook,
} from "./ngram-cross-request";
import {
  AGES,
  CONTEXT_ONE,
  CONTEXT_SKIP,
  CONTEXT_TWO,
  FOLLOWER_STATES,
  followerAge,
  followerState,
  lastUseClass,
  sequenceNgramsLook,
} from "./ngram-sequence";
import { position } from "./position";

// The feature vector of which only the shared selectors are set.
const shared: usize = memory.data(FEATURE_BYTES, 16);

// Before the candidates of the position: finds its contexts, looks the n-gram caches up and selects the weight vectors
// that all candidates share.
export function positionLook(): void {
  contextsFind(position.state, position.ends);
  if (!draft.learns) return;
  const first = position.first;
  const second = position.second;
  const third = position.third;
  vectorSet(shared, Selector.RECENT, Vector.RECENT + position.recent);
  vectorSet(shared, Selector.RECOVERED, Vector.RECOVERED + recoveredClass());
  vectorSet(shared, Selector.BEFORE, Vector.BEFORE + tokenClass(first));
  sharedBegin(shared);
  if (draft.hasSequenceNgrams) sequenceNgramsLook(draft.key, first, second, third, draft.length);
  if (!draft.hasCrossNgrams) return;
  // A long context of the group leaves little to the cross-request cache: its cache misses are saved.
  if (contextLength >= CROSS_CONTEXT_MAX) crossNgramsClear();
  else crossNgramsLook(first, second, third);
}

function tokenClass(token: u32): u32 {
  return (token * 0x9e3779b1) >> (32 - TOKEN_VECTORS_BITS);
}

// The context's length, whether the token is its likeliest, and who wrote that last: a sibling, the sequence itself, or
// none of the group (history only).
function contextKind(isLikeliest: bool): u32 {
  const kind = CONTEXT_KINDS * lengthClass(contextLength) + (isLikeliest ? 0 : 1);
  if (targetSeen == 0) return kind;
  const source = sourceOf(targetSeen);
  return kind + (source == HISTORY_SOURCE ? 4 : source == draft.source ? 2 : 0);
}

// How often the longest context that has the token was continued, and whether in several ways.
function continuedClass(): u32 {
  if (ownerSeen < 0) return 0;
  const v = contextAt(ownerSeen);
  const several: u32 = degreeOf(v) > 1 ? 1 : 0;
  const count = countOf(v) - position.ends;
  return min<u32>(CONTINUED_CLASSES - 1, (countClass(count) << 1) + several);
}

// The probability of a token whose interpolated probability has just been found, given that what precedes it is
// accepted. With learning it writes the token's feature vector.
export function judge(features: usize, token: u32, interpolated: f64, isLikeliest: bool): f64 {
  const logit = stretch(interpolated);
  if (!draft.learns) return plainProbability(logit, contextLength);
  logitSet(features, <f32>logit);
  sharedCopy(features, shared);
  vectorSet(features, Selector.CONTEXT, Vector.CONTEXT + contextKind(isLikeliest));
  vectorSet(features, Selector.CONTINUED, Vector.CONTINUED + continuedClass());
  vectorSet(features, Selector.TOKEN, Vector.TOKEN + tokenClass(token));
  stateSet(features, Input.RECOVERY, State.RECOVERY + recoveryState(token));
  let lastUse: u32 = 0;
  let one: u32 = 0;
  let two: u32 = 0;
  let skip: u32 = 0;
  if (draft.hasSequenceNgrams) {
    lastUse = (lastUseClass(token) << 1) + (isLikeliest ? 1 : 0);
    one = followerState(CONTEXT_ONE, token);
    two = followerState(CONTEXT_TWO, token);
    skip = followerState(CONTEXT_SKIP, token);
  }
  vectorSet(features, Selector.LAST_USE, Vector.LAST_USE + lastUse);
  vectorSet(features, Selector.FOLLOWERS, Vector.FOLLOWERS + two * FOLLOWER_STATES + one);
  stateSet(features, Input.ONE, State.ONE + followerOneState(one));
  stateSet(features, Input.TWO, State.TWO + two);
  stateSet(features, Input.SKIP, State.SKIP + skip);
  stateSet(features, Input.CROSS_TWO, State.CROSS_TWO + crossNgramState(1, token));
  stateSet(features, Input.CROSS_THREE, State.CROSS_THREE + crossNgramState(2, token));
  return probabilityOf(features, position.first, token);
}

function followerOneState(state: u32): u32 {
  return state == 0 ? 0 : state * AGES + followerAge();
}
