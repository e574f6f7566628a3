// Drafts of an engine whose host is a step behind its device, as vLLM's second model runner: the host drafts a tree
// from what it knows, and the device walks it with the tokens that it has sampled since, then along the likeliest
// children; outside of the tree it goes on with what followed the same tokens (followers.ts). The device's half is
// native/foretoken_vllm/src/foretoken_vllm/walk.py.

import { assert } from "../../../src/core/base/assert.ts";
import type { Drafts } from "../../../src/core/draft/drafter.ts";
import type { Followers, Keys } from "../../../src/tools/replay/followers.ts";
import type { PathToken } from "../../../src/tools/replay/head.ts";

/** One request's tree, rooted at its token number `known`. */
export interface Table {
  readonly known: number;
  readonly tokens: Int32Array;
  readonly parents: Int32Array;
  readonly probabilities: Float32Array;
}

export interface LateRequest {
  readonly table: Table | null;
  readonly response: Int32Array;
  readonly at: number;
  readonly keys: Keys;
  /** The CONTEXT tokens before `at`. */
  readonly tail: readonly number[];
}

export function tableOf(drafts: Drafts, query: number, known: number): Table {
  const from = drafts.start[query] ?? 0;
  const to = drafts.start[query + 1] ?? from;
  return {
    known,
    tokens: drafts.tokens.slice(from, to),
    parents: drafts.parents.slice(from, to),
    probabilities: drafts.probabilities.slice(from, to),
  };
}

/** The draft of a request that has `at` tokens of `response`; with a table of null there is none yet. */
export function lateDraft(
  { table, response, at, keys, tail: behind }: LateRequest,
  followers: Followers,
  bounds: { readonly tokensMax: number; readonly probabilityMin: number },
): PathToken[] {
  const path: PathToken[] = [];
  if (table === null) return path;
  const tail = [...behind];
  let node = reached(table, response, at);
  const base = node < 0 ? 1 : (table.probabilities[node] ?? 1);
  let probability = 1;
  while (path.length < bounds.tokensMax) {
    if (node !== LEFT) node = childOf(table, node);
    const follower = node === LEFT ? followers.next(keys, tail) : null;
    const token = follower?.token ?? table.tokens[node] ?? 0;
    if (node !== LEFT) probability = (table.probabilities[node] ?? 0) / base;
    else probability *= follower?.probability ?? 0;
    if (probability < bounds.probabilityMin || probability === 0) break;
    path.push({ token, probability });
    tail.push(token);
    tail.shift();
  }
  return path;
}

/** The walk is outside of the tree. */
const LEFT = -2;

function reached({ known, tokens, parents }: Table, response: Int32Array, at: number): number {
  assert(known <= at, "a table is of the past");
  let node = -1;
  for (let place = known; place < at; place += 1) {
    let next = node + 1;
    while (next < tokens.length && !(parents[next] === node && tokens[next] === response[place])) {
      next += 1;
    }
    if (next === tokens.length) return LEFT;
    node = next;
  }
  return node;
}

/** The likeliest child, which comes first; LEFT: there is none. */
function childOf({ parents }: Table, node: number): number {
  const child = parents.indexOf(node, node + 1);
  return child < 0 ? LEFT : child;
}
