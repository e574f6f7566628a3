// The draft being made: for which sequence, within which bounds, and its tokens so far. One record at a fixed address.

import { DRAFT_TOKENS_MAX, TREE_TOKENS_MAX } from "../abi";
import { G_PROMPT, G_SERIAL } from "../suffix/arena";
import { lenOf, SOURCES } from "../suffix/node";
import { Q_LAST } from "../suffix/record";
import { continuationOf, drafts, headAt, wordAt } from "./drafts";
import { contextLength } from "./interpolate";
import { isLearning } from "./mixer";
import { crossNgramsReady } from "./ngram-cross-request";
import { sequenceKey, sequenceNgramsReady } from "./ngram-sequence";

const PROBABILITY_FLOOR: f64 = 1.0 / 128.0;

@unmanaged
class Draft {
  probabilityMin: f64;
  tokensMax: i32;
  count: i32;
  // Where its tokens, parents and probabilities begin, and its head (drafts.ts).
  tokens: usize;
  parents: usize;
  probabilities: usize;
  head: usize;
  // What the sequence writes as (node.ts), its key in the per-sequence n-gram cache, and its length.
  source: u32;
  key: u32;
  length: u32;
  // Whether probabilities come from the mixer, and which n-gram caches there are.
  learns: bool;
  hasSequenceNgrams: bool;
  hasCrossNgrams: bool;
}

export const draft = changetype<Draft>(memory.data(offsetof<Draft>(), 16));

// A draft of at most `tokensMax` tokens for sequence number `index`; `sequence` is its record, 0 if it has none.
export function draftBegin(
  group: usize,
  index: u32,
  sequence: usize,
  tokensMax: i32,
  probabilityMin: f64,
  isTree: bool,
): void {
  const learns = isLearning();
  assert(probabilityMin == probabilityMin);
  draft.tokensMax = min<i32>(tokensMax, isTree ? TREE_TOKENS_MAX : DRAFT_TOKENS_MAX);
  draft.probabilityMin = max<f64>(probabilityMin, PROBABILITY_FLOOR);
  draft.source = index % SOURCES;
  draft.key = sequenceKey(load<u32>(group, G_SERIAL), index);
  draft.length = lenOf(load<u32>(sequence == 0 ? group + G_PROMPT : sequence, Q_LAST));
  draft.learns = learns;
  draft.hasSequenceNgrams = learns && sequenceNgramsReady();
  draft.hasCrossNgrams = learns && crossNgramsReady();
}

// Where it is put: it is draft number `index` of the step, behind the `at` tokens drafted before.
export function draftPlace(index: i32, at: i32): void {
  draft.count = 0;
  draft.tokens = wordAt(drafts.tokens, at);
  draft.parents = wordAt(drafts.parents, at);
  draft.probabilities = wordAt(drafts.probabilities, at);
  draft.head = headAt(index);
}

export function draftToken(index: i32): u32 {
  return load<u32>(wordAt(draft.tokens, index));
}

export function draftParent(index: i32): i32 {
  return load<i32>(wordAt(draft.parents, index));
}

// One token more; where the draft continues after it is not known yet.
export function draftEmit(token: u32, parent: i32, probability: f64): void {
  continuationOf(draft.head, draft.count).state = 0;
  draftEmitLeaf(token, parent, probability);
}

// One token more, from which nothing is learned.
export function draftEmitLeaf(token: u32, parent: i32, probability: f64): void {
  const index = draft.count;
  store<u32>(wordAt(draft.tokens, index), token);
  store<i32>(wordAt(draft.parents, index), parent);
  store<f32>(wordAt(draft.probabilities, index), <f32>probability);
  draft.count = index + 1;
}

// Where the draft continues after its token `parent`, -1 for the beginning, whether or not that is drafted.
export function draftContinues(parent: i32, state: usize, token: u32): void {
  const next = continuationOf(draft.head, parent);
  next.state = <u32>state;
  next.token = token;
  next.length = contextLength;
}
