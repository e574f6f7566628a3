// The drafts of a step in the output area, where they stay until the next step's drafts, so that verification feedback
// can be learned from. Beside the arrays that the host reads, each draft has a head for the core alone: where the draft
// continued or would have continued after each of its tokens, and the candidates that were evaluated for it.
//
//   area: failed appends | starts: drafts + 1 | tokens | parents | probabilities | heads
//   head: Head | CANDIDATES_MAX times: continuation, candidate
//
// The continuation after token i is stored before candidate i + 1, the one before the first token before candidate 0: a
// path's candidate i is its token i, so that a token's data are adjacent. A tree has more candidates than tokens.

import { DRAFT_TOKENS_MAX, TREE_TOKENS_MAX } from "../abi";
import { FEATURE_BYTES } from "./feature-vector";

// A path's candidates are its tokens and the one that was not probable enough; a tree's are all that it looked at,
// drafted or not, while there is room. Without those that are not drafted the model would learn only from tokens that it
// believed in. A path has the best two after each token. The feature vector of one of them is in a second place, behind
// the first places of all.
@unmanaged
class Head {
  isTree: bool;
  candidates: u32;
}

// State and token with which a draft continues (state 0: it ends), and the length of the context there.
@unmanaged
export class Continuation {
  state: u32;
  token: u32;
  length: u32;
}

const CONTINUATIONS: usize = offsetof<Head>();
const CANDIDATES: usize = CONTINUATIONS + offsetof<Continuation>();
const CANDIDATES_MAX: u32 = 2 * DRAFT_TOKENS_MAX;
// A candidate is its feature vector, its token, and a word: in a tree the index of the draft's token that precedes it,
// or -1; in a path the other of the two best tokens there, or NONE.
export const CANDIDATE_BYTES: usize = FEATURE_BYTES + 8 + offsetof<Continuation>();
const HEAD_BYTES: usize = CONTINUATIONS + <usize>CANDIDATES_MAX * CANDIDATE_BYTES;

// Where the drafts of the last step are; `step` is its number.
@unmanaged
class Drafts {
  step: u32;
  starts: usize;
  tokens: usize;
  parents: usize;
  probabilities: usize;
  heads: usize;
}

export const drafts = changetype<Drafts>(memory.data(offsetof<Drafts>(), 16));

// The bytes of an area for `count` drafts.
export function draftsBytes(count: i32): usize {
  const words = 3 * <usize>TREE_TOKENS_MAX + 1;
  return <usize>count * ((words << 2) + HEAD_BYTES) + 8;
}

export function draftsPlace(area: usize, count: i32): void {
  const bytes = (<usize>count * <usize>TREE_TOKENS_MAX) << 2;
  drafts.starts = area + 4;
  drafts.tokens = wordAt(drafts.starts, count + 1);
  drafts.parents = drafts.tokens + bytes;
  drafts.probabilities = drafts.parents + bytes;
  drafts.heads = drafts.probabilities + bytes;
}

// Discards the previous drafts.
export function draftsBegin(): void {
  drafts.step += 1;
}

export function wordAt(array: usize, index: i32): usize {
  return array + ((<usize>index) << 2);
}

export function headAt(index: i32): usize {
  return drafts.heads + <usize>index * HEAD_BYTES;
}

export function headClear(head: usize, isTree: bool): void {
  changetype<Head>(head).isTree = isTree;
  changetype<Head>(head).candidates = 0;
  continuationOf(head, -1).state = 0;
}

// Places that candidates were kept of: of a path, one each.
export function headCandidates(head: usize): i32 {
  return changetype<Head>(head).candidates;
}

export function headIsTree(head: usize): bool {
  return changetype<Head>(head).isTree;
}

// Where the draft continues after its token number `index`, -1 for the beginning.
export function continuationOf(head: usize, index: i32): Continuation {
  const at = head + CONTINUATIONS + <usize>(index + 1) * CANDIDATE_BYTES;
  return changetype<Continuation>(at);
}

// Iteration over the candidates: `for (at = candidatesBegin(head); at < candidatesEnd(head); at += CANDIDATE_BYTES)`; a
// candidate begins with its feature vector.
export function candidatesBegin(head: usize): usize {
  return head + CANDIDATES;
}

// Behind the last candidate: where the feature vector of the next one belongs, before candidateKeep.
export function candidatesEnd(head: usize): usize {
  return candidatesBegin(head) + <usize>changetype<Head>(head).candidates * CANDIDATE_BYTES;
}

export function candidatesFull(head: usize): bool {
  return changetype<Head>(head).candidates == CANDIDATES_MAX;
}

export function candidateKeep(head: usize, token: u32, word: u32): void {
  assert(!candidatesFull(head));
  const at = candidatesEnd(head);
  store<u32>(at, token, FEATURE_BYTES);
  store<u32>(at, word, FEATURE_BYTES + 4);
  changetype<Head>(head).candidates += 1;
}

export function candidateToken(at: usize): u32 {
  return load<u32>(at, FEATURE_BYTES);
}

export function candidateParent(at: usize): i32 {
  return load<i32>(at, FEATURE_BYTES + 4);
}

export function candidateOther(at: usize): u32 {
  return load<u32>(at, FEATURE_BYTES + 4);
}

// The second place of the candidate at `at` of a path.
export function secondPlace(at: usize): usize {
  return at + <usize>DRAFT_TOKENS_MAX * CANDIDATE_BYTES;
}

// The budget has cut the draft to `count` tokens: what a path has behind them is not learned from.
export function headCut(head: usize, count: i32): void {
  if (!headIsTree(head)) changetype<Head>(head).candidates = count;
}
