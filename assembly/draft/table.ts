// Drafts for a device that is a step ahead of the host: a tree that it walks with the tokens that it has sampled since.
// A whole tree (tree.ts) asks the model about each of its nodes. Here the model judges the first places of one path
// only. Behind them the path follows the automaton's best edges, and so do the branches that leave it: each begins with
// a continuation that was looked at beside the path's. Drafts 97 to 99 % of what whole trees of as many nodes do, in a
// sixth of the time (docs/experiments/second-runner.md).

import { TABLE_NODES } from "../abi";
import {
  bestTarget,
  bestToken,
  countOf,
  degreeOf,
  linkOf,
  NONE,
  pairsBegin,
  pairsEnd,
} from "../suffix/node";
import { positionLook } from "./candidate";
import { draft, draftContinues, draftEmit, draftEmitLeaf } from "./draft";
import { contextAt, contextCount, scaleAt, stateBehind } from "./interpolate";
import {
  best,
  bestP,
  bestTargetSeen,
  choose,
  isTried,
  keep,
  triedCount,
  triedProbability,
  triedToken,
} from "./path";
import { position, positionAdvance } from "./position";

// Places of the path that the model judges: each costs as much as ten nodes without it, and most walks leave the path
// before. A step of many drafts has fewer of them and smaller tables, so that it takes a part of the engine's step.
const JUDGED_STEP: i32 = 400;
const JUDGED_MAX: i32 = 6;
const JUDGED_MIN: i32 = 2;
const NODES_STEP: i32 = 8192;
const NODES_MIN: i32 = 32;
// Of the judged places, a third: there all continuations of the contexts begin branches, not only those that were judged.
const SCANNED_PART: i32 = 3;
// A context with more continuations predicts little, and a scan is expensive.
const SCAN_MAX: u32 = 8;
// Tokens of a branch behind its first, in eighths of the longest path.
const BRANCH_PART: i32 = 3;
const BRANCHES_MAX: i32 = 8;
// Less likely branches are left to the tokens that followed the same ones (followers.ts).
const BRANCH_MIN: f64 = 0.01;
// Least probability of a context's part at which it is asked for its continuation.
const CONTEXT_MIN: f64 = 0.0001;

// Of the draft being made: nodes at most, and places whose contexts are asked for all continuations.
let nodes: i32 = 0;
let scanned: i32 = 0;

@unmanaged
class Branch {
  probability: f64;
  token: u32;
  // The path's token before it, and the state that this is in.
  parent: i32;
  state: usize;
}

const BRANCH_BYTES: usize = offsetof<Branch>();
const branches: usize = memory.data(8 * offsetof<Branch>(), 16);
let branchCount: i32 = 0;

function branchAt(index: i32): Branch {
  return changetype<Branch>(branches + <usize>index * BRANCH_BYTES);
}

function branchCopy(to: Branch, from: Branch): void {
  to.probability = from.probability;
  to.token = from.token;
  to.parent = from.parent;
  to.state = from.state;
}

// Keeps the most likely branches, those first. Contexts that continue with the same token add up, as in the interpolated
// probability.
function offer(token: u32, parent: i32, probability: f64): void {
  let p = probability;
  let at = 0;
  while (at < branchCount && (branchAt(at).token != token || branchAt(at).parent != parent))
    at += 1;
  if (at < branchCount) p += branchAt(at).probability;
  else if (p < BRANCH_MIN) return;
  else if (branchCount < BRANCHES_MAX) branchCount += 1;
  else {
    at -= 1;
    if (p <= branchAt(at).probability) return;
  }
  while (at > 0 && branchAt(at - 1).probability < p) {
    branchCopy(branchAt(at), branchAt(at - 1));
    at -= 1;
  }
  const branch = branchAt(at);
  branch.probability = p;
  branch.token = token;
  branch.parent = parent;
  branch.state = position.state;
}

// What was judged beside the best token, and at the first places what else the contexts continue with. `p` is the
// probability of the path up to here.
function offerOthers(parent: i32, p: f64): void {
  for (let i: i32 = 0; i < triedCount; i++) {
    if (triedToken(i) != best) offer(triedToken(i), parent, p * triedProbability(i));
  }
  if (parent + 1 >= scanned) return;
  for (let j: i32 = 0; j < contextCount; j++) {
    const v = contextAt(j);
    const degree = degreeOf(v);
    if (degree == 1 || degree > SCAN_MAX) continue;
    const scale = p * scaleAt(j);
    if (scale * <f64>countOf(bestTarget(v)) < BRANCH_MIN) continue;
    const end = pairsEnd(v);
    for (let at = pairsBegin(v); at < end; at += 8) {
      const token = load<u32>(at);
      if (token == NONE || isTried(token)) continue;
      offer(token, parent, scale * <f64>countOf(load<u32>(at, 4)));
    }
  }
}

// Appends the automaton's likeliest continuation of `state`, `tokens` at most, behind the draft's last token. The
// root, which has no link, is no context.
function follow(state: usize, probability: f64, tokens: i32): void {
  let v = state;
  let p = probability;
  for (let left = tokens; left > 0 && draft.count < nodes; left--) {
    while (bestToken(v) == NONE && linkOf(v) != 0) v = linkOf(v);
    if (linkOf(v) == 0) return;
    const target = bestTarget(v);
    // The prompt's end counts once for each response, so more often than what precedes it.
    const count = countOf(v) + 1;
    p *= <f64>min<u32>(countOf(target), count) / <f64>count;
    draftEmitLeaf(bestToken(v), draft.count - 1, p);
    v = target;
  }
}

// One of the `count` drafts of a step; returns its size. The path has `draft.tokensMax` tokens at most, and stands before
// the branches.
export function draftTable(count: i32): i32 {
  let p: f64 = 1;
  branchCount = 0;
  const share = max<i32>(count, 1);
  nodes = min<i32>(max<i32>(NODES_STEP / share, NODES_MIN), TABLE_NODES);
  const places = min<i32>(max<i32>(JUDGED_STEP / share, JUDGED_MIN), JUDGED_MAX);
  const judged = min<i32>(places, draft.tokensMax);
  scanned = places / SCANNED_PART;
  while (draft.count < judged) {
    positionLook();
    const token = choose(CONTEXT_MIN);
    if (token == NONE) break;
    const state = bestTargetSeen == 0 ? stateBehind(position.state, token) : bestTargetSeen;
    const last = draft.count - 1;
    draftContinues(last, state, token);
    if (draft.learns) keep();
    offerOthers(last, p);
    p *= bestP;
    draftEmit(token, last, p);
    positionAdvance(token, state);
  }
  const branchTokens = (BRANCH_PART * draft.tokensMax) >> 3;
  if (draft.count == judged) follow(position.state, p, draft.tokensMax - judged);
  for (let i: i32 = 0; i < branchCount && draft.count < nodes; i++) {
    const branch = branchAt(i);
    draftEmitLeaf(branch.token, branch.parent, branch.probability);
    follow(stateBehind(branch.state, branch.token), branch.probability, branchTokens);
  }
  return draft.count;
}
