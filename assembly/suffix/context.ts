// How long a context may be: drafts match at most `context` tokens, counts are kept for `depth`. Finds the class
// of the last n tokens on the link path of a longer one. Reads the automaton only.

import { CONTEXT_TOKENS_DEFAULT, DRAFT_TOKENS_MAX } from "../abi";
import { lenOf, linkOf } from "./node";

let context: u32 = CONTEXT_TOKENS_DEFAULT;
let depth: u32 = CONTEXT_TOKENS_DEFAULT + DRAFT_TOKENS_MAX;

export function contextBegin(tokens: u32): void {
  context = tokens;
  depth = tokens + DRAFT_TOKENS_MAX;
}

export function contextDepth(): u32 {
  return depth;
}

// The class of the last `depth` tokens, after others may have split the one it was.
export function normalTop(top: usize): usize {
  let t = top;
  let link = linkOf(t);
  while (link != 0 && lenOf(link) >= depth) {
    t = link;
    link = linkOf(t);
  }
  return t;
}

// The class of the last `context` tokens of the shortest string of `top`.
export function contextState(top: usize): usize {
  let s = top;
  let link = linkOf(s);
  while (link != 0 && lenOf(link) >= context) {
    s = link;
    link = linkOf(s);
  }
  return s;
}
