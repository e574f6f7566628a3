// Drafts of an engine whose host is a step behind its device, as vLLM's second model runner: the host drafts a tree
// from what it knows, and the device walks it with the tokens that it has sampled since, then along the likeliest
// children. The device's half is native/foretoken_vllm/src/foretoken_vllm/walk.py.

import { assert } from "../../core/base/assert.ts";
import { DRAFT_TOKENS_MAX, type Drafts } from "../../core/draft/drafter.ts";

/** Least probability of a tree's node: less likely ones are seldom reached. */
export const NODE_PROBABILITY_MIN = 0.01;

/** One request's tree, rooted at its token number `known`. */
export interface Table {
  readonly known: number;
  readonly tokens: Int32Array;
  readonly parents: Int32Array;
  readonly probabilities: Float32Array;
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
  add(
    request: { readonly table: Table | null; readonly response: Int32Array; readonly at: number },
    bounds: { readonly tokensMax: number; readonly probabilityMin: number },
  ): void {
    const { table, response, at } = request;
    const from = this.start[this.#query] ?? 0;
    let end = from;
    const inside = table === null ? LEFT : reached(table, response, at);
    const root = table === null || inside !== LEFT ? inside : elsewhere(table, response, at);
    if (table !== null && root !== LEFT) {
      const odds = inside === LEFT ? ELSEWHERE_PROBABILITY : 1;
      const base = (root < 0 ? 1 : (table.probabilities[root] ?? 0)) / odds;
      for (let node = childOf(table, root); node >= 0; node = childOf(table, node)) {
        const probability = (table.probabilities[node] ?? 0) / base;
        if (end - from === bounds.tokensMax || probability < bounds.probabilityMin) break;
        this.tokens[end] = table.tokens[node] ?? 0;
        this.parents[end] = end - from - 1;
        this.probabilities[end] = probability;
        end += 1;
      }
    }
    this.#query += 1;
    this.start[this.#query] = end;
  }
}

/** Measured probability of the first draft token behind such a node. */
const ELSEWHERE_PROBABILITY = 0.3;
/** The tokens since are not in the tree. */
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

/** A node that follows the same two tokens, else the likeliest of the same token: the text may only have been delayed. */
function elsewhere({ tokens, parents }: Table, response: Int32Array, at: number): number {
  const [before, last] = [response[at - 2], response[at - 1]];
  let found = LEFT;
  for (let node = 0; node < tokens.length; node += 1) {
    if (tokens[node] !== last) continue;
    const parent = parents[node] ?? -1;
    if (parent >= 0 && tokens[parent] === before) return node;
    if (found === LEFT) found = node;
  }
  return found;
}

/** The likeliest child, which comes first; -1: none. */
function childOf({ parents }: Table, node: number): number {
  return parents.indexOf(node, node + 1);
}
