// Drafts of an engine whose host is a step behind its device, as vLLM's second model runner: the host drafts a tree
// from what it knows, and the device walks it with the tokens that it has sampled since, then along the likeliest
// children; outside of the tree it goes on with what followed the same tokens (followers.ts). The device's half is
// native/foretoken_vllm/src/foretoken_vllm/walk.py.

import { assert } from "../../../src/core/base/assert.ts";
import { DRAFT_TOKENS_MAX, type Drafts } from "../../../src/core/draft/drafter.ts";
import { Followers, type Keys } from "./followers.ts";

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

/** One path a request, written anew every round. */
export class LateDrafts implements Drafts {
  readonly followers = new Followers();
  start = new Int32Array(1);
  tokens = new Int32Array(0);
  parents = new Int32Array(0);
  probabilities = new Float32Array(0);
  #query = 0;

  begin(requests: number): void {
    this.#query = 0;
    if (this.start.length > requests) return;
    this.start = new Int32Array(2 * requests + 1);
    this.tokens = new Int32Array(2 * requests * DRAFT_TOKENS_MAX);
    this.parents = new Int32Array(this.tokens.length);
    this.probabilities = new Float32Array(this.tokens.length);
  }

  /** The draft of the next request, which has `at` tokens of `response`; a table of null: it has none yet. */
  add(request: LateRequest, bounds: { tokensMax: number; probabilityMin: number }): void {
    const { table, response, at, keys } = request;
    const tail = [...request.tail];
    const from = this.start[this.#query] ?? 0;
    let end = from;
    let node = table === null ? LEFT : reached(table, response, at);
    const base = node < 0 ? 1 : (table?.probabilities[node] ?? 1);
    let probability = 1;
    while (table !== null && end - from < bounds.tokensMax) {
      if (node !== LEFT) node = childOf(table, node);
      let token = table.tokens[node] ?? 0;
      if (node !== LEFT) {
        probability = (table.probabilities[node] ?? 0) / base;
      } else {
        const follower = this.followers.next(keys, tail);
        token = follower?.token ?? 0;
        probability *= follower?.probability ?? 0;
      }
      if (probability < bounds.probabilityMin || probability === 0) break;
      this.tokens[end] = token;
      this.parents[end] = end - from - 1;
      this.probabilities[end] = probability;
      tail.push(token);
      tail.shift();
      end += 1;
    }
    this.#query += 1;
    this.start[this.#query] = end;
  }
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
