// What becomes of drafts: remembers each sequence's last one until its next tokens are appended, learns
// from which of its tokens they were, and keeps where the text that the sequence parted from would have
// gone on (the recovery). Only for sequences that this instance drafts for, and only if it learns:
// replicas do not agree on any of it.

import { G_SERIAL } from "../suffix/arena";
import { contextState } from "../suffix/context";
import { edgeOf, lenOf, linkOf } from "../suffix/node";
import {
  Q_AGREED,
  Q_DRAFT_AT,
  Q_DRAFT_COUNT,
  Q_DRAFT_HEAD,
  Q_DRAFT_REACHED,
  Q_DRAFT_STEP,
  Q_DRAFTED,
  Q_EARLIER,
  Q_LAST,
  Q_LEFT,
  Q_RECOVERY,
  Q_SECOND,
  Q_SINCE,
  Q_THIRD,
  Q_TOKEN,
} from "../suffix/record";
import {
  acceptedAs,
  FEATURE_BYTES,
  isLearning,
  learn,
  lengthClass,
  oddsOf,
  R_NEXT_LENGTH,
  R_NEXT_STATE,
  R_NEXT_TOKEN,
} from "./mixer";
import { CROSS_CONTEXT_MAX, crossNgramsReady, crossNgramsUpdate } from "./ngram-cross-request";
import { sequenceKey, sequenceNgramsReady, sequenceNgramsUpdate } from "./ngram-sequence";
import {
  H_COUNT,
  H_IS_TREE,
  HEAD_BYTES,
  HEAD_START,
  K_PARENT,
  K_TOKEN,
  KEPT_BYTES,
} from "./propose";

// The drafts of the last step, still in the output area: the step's number, the first token, the bytes
// between the arrays of words, the first reason and the first head.
let draftStep: u32 = 0;
let draftTokens: usize = 0;
let draftRoom: usize = 0;
let draftFeatures: usize = 0;
let draftHeads: usize = 0;
const AGREED_MAX: u32 = 255;

// A step begins to draft; earlier drafts are gone.
export function draftsBegin(tokens: usize, room: usize, features: usize, heads: usize): void {
  draftStep += 1;
  draftTokens = tokens;
  draftRoom = room;
  draftFeatures = features;
  draftHeads = heads;
}

// Remembers the draft of `count` tokens that begins with the token at index `at`, and its head's index.
export function draftKeep(sequence: usize, head: i32, at: i32, count: i32): void {
  if (sequence == 0 || !isLearning()) return;
  store<u32>(sequence, draftStep, Q_DRAFT_STEP);
  store<i32>(sequence, at, Q_DRAFT_AT);
  store<u16>(sequence, <u16>count, Q_DRAFT_COUNT);
  store<u16>(sequence, 0, Q_DRAFT_REACHED);
  store<i32>(sequence, head, Q_DRAFT_HEAD);
  store<u8>(sequence, <u8>earlierOf(sequence), Q_EARLIER);
  store<u8>(sequence, 0, Q_SINCE);
  store<u8>(sequence, 1, Q_DRAFTED);
}

// Tokens of the draft before this one that were accepted: all since then but the last were.
function acceptedOf(sequence: usize): u32 {
  const since: u32 = load<u8>(sequence, Q_SINCE);
  return since == 0 ? 0 : since - 1;
}

function earlierOf(sequence: usize): u32 {
  return min<u32>((acceptedOf(sequence) + 1) >> 1, 3);
}

// How many tokens of the sequence's last draft were accepted, and about how many of the one before, as
// one of 32 classes: where a text is being copied, it will be.
export function recentOf(sequence: usize): u32 {
  return (min<u32>(acceptedOf(sequence), 7) << 2) + <u32>load<u8>(sequence, Q_EARLIER);
}

// The sequence, whose record is followed, is about to go on with the token.
export function feedback(group: usize, index: u32, sequence: usize, token: u32): void {
  const recovery: usize = load<u32>(sequence, Q_RECOVERY);
  if (recovery != 0) {
    const next = edgeOf(recovery, token);
    store<u32>(sequence, next == 0 ? 0 : <u32>contextState(next), Q_RECOVERY);
    const agreed: u32 = load<u8>(sequence, Q_AGREED);
    if (agreed < AGREED_MAX) store<u8>(sequence, <u8>(agreed + 1), Q_AGREED);
  }
  if (load<u32>(sequence, Q_DRAFT_STEP) != 0) settle(sequence, token);
  const since = load<u8>(sequence, Q_SINCE);
  if (since != 255) store<u8>(sequence, since + 1, Q_SINCE);
  const first = load<u32>(sequence, Q_TOKEN);
  const second = load<u32>(sequence, Q_SECOND);
  const third = load<u32>(sequence, Q_THIRD);
  if (sequenceNgramsReady()) {
    const key = sequenceKey(load<u32>(group, G_SERIAL), index);
    sequenceNgramsUpdate(key, first, second, third, token, lenOf(load<u32>(sequence, Q_LAST)));
  }
  // What a long context of the group goes on with is not new: it is left out, as from the shorter contexts of PPM.
  if (lenOf(linkOf(load<u32>(sequence, Q_LAST))) < CROSS_CONTEXT_MAX && crossNgramsReady()) {
    crossNgramsUpdate(first, second, third, token);
  }
  store<u32>(sequence, second, Q_THIRD);
  store<u32>(sequence, first, Q_SECOND);
}

// The fate of the draft's tokens that follow what was accepted so far is known: learn from it.
function settle(sequence: usize, token: u32): void {
  if (load<u32>(sequence, Q_DRAFT_STEP) != draftStep) {
    store<u32>(sequence, 0, Q_DRAFT_STEP);
    return;
  }
  const from = load<u32>(sequence, Q_DRAFT_AT);
  const tokens = draftTokens + ((<usize>from) << 2);
  const features = draftFeatures + <usize>from * FEATURE_BYTES;
  const head = draftHeads + <usize>load<u32>(sequence, Q_DRAFT_HEAD) * HEAD_BYTES;
  const count: i32 = load<u16>(sequence, Q_DRAFT_COUNT);
  const parent = <i32>load<u16>(sequence, Q_DRAFT_REACHED) - 1;
  const before =
    parent < 0 ? load<u32>(sequence, Q_TOKEN) : load<u32>(tokens + ((<usize>parent) << 2));
  const isTree = load<u32>(head, H_IS_TREE) != 0;
  let reached: i32 = -1;
  for (let i = parent + 1; i < count; i++) {
    const at = tokens + ((<usize>i) << 2);
    if (load<i32>(at + draftRoom) != parent) continue;
    const drafted = load<u32>(at);
    // A tree's tokens are among the candidates.
    if (!isTree) learn(features + <usize>i * FEATURE_BYTES, before, drafted, drafted == token, 1);
    if (drafted == token) reached = i;
  }
  learnKept(head, isTree, parent, before, token);
  if (reached >= 0) {
    store<u16>(sequence, <u16>(reached + 1), Q_DRAFT_REACHED);
    return;
  }
  store<u32>(sequence, 0, Q_DRAFT_STEP);
  part(sequence, parent < 0 ? head : features + <usize>parent * FEATURE_BYTES, token);
}

// Learns from the candidates behind `parent`; those of a tree stood against each other.
function learnKept(head: usize, isTree: bool, parent: i32, before: u32, token: u32): void {
  const from = head + HEAD_START;
  const end = from + <usize>load<u32>(head, H_COUNT) * KEPT_BYTES;
  let all: f64 = 1;
  if (isTree) {
    for (let at = from; at < end; at += KEPT_BYTES) {
      if (load<i32>(at, K_PARENT) == parent) {
        all += oddsOf(acceptedAs(at, before, load<u32>(at, K_TOKEN)));
      }
    }
  }
  for (let at = from; at < end; at += KEPT_BYTES) {
    if (load<i32>(at, K_PARENT) != parent) continue;
    const one = load<u32>(at, K_TOKEN);
    const others = isTree ? max<f64>(all - oddsOf(acceptedAs(at, before, one)), 1) : 1;
    learn(at, before, one, one == token, others);
  }
}

// The sequence has parted from its draft: it may come back to where that would have gone on, unless an
// earlier recovery has already agreed for longer than this draft's context.
function part(sequence: usize, next: usize, token: u32): void {
  const state: usize = load<u32>(next, R_NEXT_STATE);
  if (state == 0 || load<u32>(next, R_NEXT_TOKEN) == token) return;
  const agreed: u32 = load<u8>(sequence, Q_AGREED);
  if (load<u32>(sequence, Q_RECOVERY) != 0 && <u32>load<u16>(next, R_NEXT_LENGTH) <= agreed) return;
  store<u32>(sequence, <u32>contextState(state), Q_RECOVERY);
  store<u8>(sequence, 0, Q_AGREED);
  store<u8>(sequence, <u8>lengthClass(load<u16>(next, R_NEXT_LENGTH)), Q_LEFT);
}
