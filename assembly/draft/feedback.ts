// Verification feedback: a sequence's next tokens tell which tokens of its last draft were accepted. The mixer learns
// from that, match recovery begins where the sequence parts from the draft, and the n-gram caches take the tokens. Only
// for sequences that this instance drafts for, and only if it learns: replicas do not agree on any of it.

import { G_SERIAL } from "../suffix/arena";
import { lenOf, linkOf, NONE } from "../suffix/node";
import {
  Q_DRAFT_AT,
  Q_DRAFT_COUNT,
  Q_DRAFT_HEAD,
  Q_DRAFT_REACHED,
  Q_DRAFT_STEP,
  Q_DRAFTED,
  Q_LAST,
  Q_SECOND,
  Q_THIRD,
  Q_TOKEN,
} from "../suffix/record";
import {
  CANDIDATE_BYTES,
  candidateOther,
  candidateParent,
  candidatesBegin,
  candidatesEnd,
  candidateToken,
  continuationOf,
  drafts,
  headAt,
  headIsTree,
  secondPlace,
  wordAt,
} from "./drafts";
import { recoveryBegin, recoveryFollow } from "./match-recovery";
import { isLearning, mixerUpdate, oddsNow, secondUpdate, statesUpdate } from "./mixer";
import { CROSS_CONTEXT_MAX, crossNgramsReady, crossNgramsUpdate } from "./ngram-cross-request";
import { sequenceKey, sequenceNgramsReady, sequenceNgramsUpdate } from "./ngram-sequence";
import { acceptanceBegin, acceptanceRaise } from "./recent-acceptance";

// Remembers a sequence's draft of `count` tokens, which begins with the step's token number `at`, and its head's index.
export function draftRemember(sequence: usize, head: i32, at: i32, count: i32): void {
  if (sequence == 0 || !isLearning()) return;
  store<u32>(sequence, drafts.step, Q_DRAFT_STEP);
  store<i32>(sequence, at, Q_DRAFT_AT);
  store<u16>(sequence, <u16>count, Q_DRAFT_COUNT);
  store<u16>(sequence, 0, Q_DRAFT_REACHED);
  store<i32>(sequence, head, Q_DRAFT_HEAD);
  store<u8>(sequence, 1, Q_DRAFTED);
  acceptanceBegin(sequence);
}

// The sequence, which has been drafted for, is about to continue with the token.
export function feedback(group: usize, index: u32, sequence: usize, token: u32): void {
  recoveryFollow(sequence, token);
  if (load<u32>(sequence, Q_DRAFT_STEP) != 0) verified(sequence, token);
  acceptanceRaise(sequence);
  const first = load<u32>(sequence, Q_TOKEN);
  const second = load<u32>(sequence, Q_SECOND);
  const third = load<u32>(sequence, Q_THIRD);
  const last = load<u32>(sequence, Q_LAST);
  if (sequenceNgramsReady()) {
    const key = sequenceKey(load<u32>(group, G_SERIAL), index);
    sequenceNgramsUpdate(key, first, second, third, token, lenOf(last));
  }
  // Update exclusion, as in PPM: continuations of a long context of the group are not added to the cross-request cache.
  if (lenOf(linkOf(last)) < CROSS_CONTEXT_MAX && crossNgramsReady()) {
    crossNgramsUpdate(first, second, third, token);
  }
}

// The draft's tokens and candidates behind what was accepted of it so far: `token` is the right one.
function verified(sequence: usize, token: u32): void {
  if (load<u32>(sequence, Q_DRAFT_STEP) != drafts.step) {
    store<u32>(sequence, 0, Q_DRAFT_STEP);
    return;
  }
  const begin: i32 = load<u32>(sequence, Q_DRAFT_AT);
  const head = headAt(load<u32>(sequence, Q_DRAFT_HEAD));
  const count: i32 = load<u16>(sequence, Q_DRAFT_COUNT);
  const parent = <i32>load<u16>(sequence, Q_DRAFT_REACHED) - 1;
  const before =
    parent < 0 ? load<u32>(sequence, Q_TOKEN) : load<u32>(wordAt(drafts.tokens, begin + parent));
  if (headIsTree(head)) learnTree(head, parent, before, token);
  else learnPath(head, parent, before, token);
  let reached = parent + 1;
  while (reached < count && !isChild(begin + reached, parent, token)) reached += 1;
  if (reached < count) {
    store<u16>(sequence, <u16>(reached + 1), Q_DRAFT_REACHED);
    return;
  }
  store<u32>(sequence, 0, Q_DRAFT_STEP);
  const next = continuationOf(head, parent);
  if (next.state != 0 && next.token != token) recoveryBegin(sequence, next.state, next.length);
}

function isChild(index: i32, parent: i32, token: u32): bool {
  if (load<i32>(wordAt(drafts.parents, index)) != parent) return false;
  return load<u32>(wordAt(drafts.tokens, index)) == token;
}

// A path has two candidates after each token, the best and the second best, or one. States learn from the one in the
// first place alone, mostly the candidate that was judged first: learning from the best, or from both, drafts worse.
function learnPath(head: usize, parent: i32, before: u32, right: u32): void {
  const at = candidatesBegin(head) + <usize>(parent + 1) * CANDIDATE_BYTES;
  if (at >= candidatesEnd(head)) return;
  const token = candidateToken(at);
  const odds = oddsNow(at, before, token);
  const other = candidateOther(at);
  if (other == NONE) mixerUpdate(at, before, token, token == right, odds, 1);
  else {
    const place = secondPlace(at);
    const otherOdds = oddsNow(place, before, other);
    if (otherOdds > odds) {
      mixerUpdate(place, before, other, other == right, otherOdds, 1);
      secondUpdate(at, before, token, token == right, odds);
    } else {
      mixerUpdate(at, before, token, token == right, odds, 1);
      secondUpdate(place, before, other, other == right, otherOdds);
    }
  }
  statesUpdate(at, token == right);
}

// The candidates of a tree that stand behind the same token competed with each other.
function learnTree(head: usize, parent: i32, before: u32, right: u32): void {
  const end = candidatesEnd(head);
  let all: f64 = 1;
  for (let at = candidatesBegin(head); at < end; at += CANDIDATE_BYTES) {
    if (candidateParent(at) == parent) all += oddsNow(at, before, candidateToken(at));
  }
  for (let at = candidatesBegin(head); at < end; at += CANDIDATE_BYTES) {
    if (candidateParent(at) != parent) continue;
    const token = candidateToken(at);
    const odds = oddsNow(at, before, token);
    mixerUpdate(at, before, token, token == right, odds, max<f64>(all - odds, 1));
    statesUpdate(at, token == right);
  }
}
