// Checks a group's automaton: returns 0 if it is correct, else the number of the broken
// rule. For tests: it visits every state through the edges from the root, using the lowest bit of the
// link (an address, so even) as its mark, and takes it off again.

import { G_PROMPT, G_ROOT, G_SEQ_COUNT, G_SEQS } from "./arena";
import { contextDepth } from "./context";
import {
  bestTarget,
  bestToken,
  countOf,
  degreeOf,
  edgeOf,
  kindOf,
  lenOf,
  linkOf,
  NONE,
  pairsBegin,
  pairsEnd,
  setLink,
} from "./node";
import { Q_LAST, Q_TOP, SEQ_BYTES } from "./record";

const MARK: usize = 1;
let broken: i32 = 0;

function must(rule: i32, holds: bool): void {
  if (!holds && broken == 0) broken = rule;
}

function linkRead(v: usize): usize {
  return linkOf(v) & ~MARK;
}

// `depth` of the recursion is bounded by the longest text: tests use short ones.
function visit(v: usize, root: usize): void {
  if ((linkOf(v) & MARK) != 0) return;
  setLink(v, linkOf(v) | MARK);
  const link = linkRead(v);
  const counted = link == 0 || lenOf(link) < contextDepth();
  if (v == root) {
    must(1, link == 0 && lenOf(v) == 0);
  } else {
    // 2: a link leads to a shorter string; 3: which occurs at least as often.
    must(2, link != 0 && lenOf(link) < lenOf(v));
    if (counted) must(3, countOf(link) >= countOf(v));
  }
  const kind = kindOf(v);
  if (kind == 0) {
    must(4, bestToken(v) == NONE);
    return;
  }
  // 5: the best edge is an edge.
  must(5, edgeOf(v, bestToken(v)) == bestTarget(v));
  if (kind == 1) {
    target(v, bestToken(v), bestTarget(v), root, false);
    return;
  }
  let degree: u32 = 0;
  const end = pairsEnd(v);
  for (let at = pairsBegin(v); at < end; at += 8) {
    const token = load<u32>(at);
    if (token == NONE) continue;
    degree += 1;
    // 6: each edge is found by its token.
    must(6, edgeOf(v, token) == <usize>load<u32>(at, 4));
    target(v, token, load<u32>(at, 4), root, link == 0 || lenOf(link) + 1 < contextDepth());
  }
  // 7: the degree is the number of edges.
  must(7, degree == degreeOf(v));
}

function target(v: usize, token: u32, to: usize, root: usize, ranked: bool): void {
  // 8: an edge leads to a longer string.
  must(8, lenOf(to) > lenOf(v));
  visit(to, root);
  if (!ranked) return;
  // 9: no edge counts more than the best, and none with a lower token as much.
  const best = countOf(bestTarget(v));
  const count = countOf(to);
  must(9, count < best || (count == best && token >= bestToken(v)));
}

function clear(v: usize): void {
  if ((linkOf(v) & MARK) == 0) return;
  setLink(v, linkRead(v));
  const kind = kindOf(v);
  if (kind == 0) return;
  if (kind == 1) {
    clear(bestTarget(v));
    return;
  }
  const end = pairsEnd(v);
  for (let at = pairsBegin(v); at < end; at += 8) {
    if (load<u32>(at) != NONE) clear(load<u32>(at, 4));
  }
}

export function groupCheck(group: usize): i32 {
  broken = 0;
  const root: usize = load<u32>(group, G_ROOT);
  visit(root, root);
  clear(root);
  const prompt = lenOf(load<u32>(group, G_PROMPT + Q_LAST));
  const count = load<u32>(group, G_SEQ_COUNT);
  for (let i: u32 = 0; i < count; i++) {
    const sequence = <usize>load<u32>(group, G_SEQS) + <usize>i * SEQ_BYTES;
    // 10: a sequence's state holds its whole text, which begins with the prompt.
    must(10, lenOf(load<u32>(sequence, Q_LAST)) >= prompt);
    // 11: its bounded state lies on the suffix path of the former.
    let s: usize = load<u32>(sequence, Q_LAST);
    const top: usize = load<u32>(sequence, Q_TOP);
    while (s != 0 && s != top) s = linkOf(s);
    must(11, s == top);
  }
  return broken;
}
