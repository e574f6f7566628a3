// Drafts of a trained head (MTP, EAGLE) that is simulated, beside the group's tables as the plugin has them beside a real
// one: the tree is walked along the head's tokens, or behind it what followed the same tokens; its token is taken where its
// estimate is higher than the head's, and it goes on where the head has ended.
//
// What the head is right about is drawn once for each position of a response: in the draft it has the response's token with
// the probability of the place, if it had all those before, else one that is none. So it is as often right where siblings
// are as where they are not; real heads are not quite, for both are right about what is easy.

import { fold32 } from "../../core/base/hash.ts";
import type { Drafter, Drafts } from "../../core/draft/drafter.ts";
import { CONTEXT, Followers, keysOf } from "./followers.ts";
import type { LiveResponse } from "./replay.ts";

export const HEAD_SYSTEMS = ["head", "table", "both"] as const;

export interface HeadOptions {
  readonly system: (typeof HEAD_SYSTEMS)[number];
  /** Of the head's first token, of its second if the first was right, and so on: it drafts as many. */
  readonly acceptance: readonly number[];
  /** Token that a real head drafts at a place, and whether the table's is taken; absent: as a simulated head. */
  readonly real?: {
    said(one: LiveResponse, place: number): number;
    takesTable(one: LiveResponse, both: Both): boolean;
  };
}

/** The tokens of both at a place behind the `path` so far. */
export interface Both {
  readonly path: readonly PathToken[];
  readonly ofHead: number;
  readonly ofTable: Said;
  /** The head's acceptance at that place. */
  readonly own: number;
}

/** A token of a path: that it and all before it are accepted has this probability. */
export interface PathToken {
  readonly token: number;
  readonly probability: number;
}

/** A table's token, its node in the tree, and how likely it is if all before it are right. */
export interface Said {
  readonly token: number;
  readonly node: number;
  readonly share: number;
}

const WRONG = -1;
const NOTHING: Said = { token: WRONG, node: -1, share: 0 };
/** Places of a walk that are no nodes: before the first token, and outside of the tree. */
const ROOT = -1;
const LEFT = -2;

export class HeadDrafts {
  readonly #drafter: Drafter;
  readonly #options: HeadOptions;
  readonly #followers = new Followers();
  /** Tokens of each response that are among the followers. */
  readonly #taken = new WeakMap<LiveResponse, number>();

  constructor(drafter: Drafter, options: HeadOptions) {
    this.#drafter = drafter;
    this.#options = options;
  }

  /** The drafts of a round of the replay, as long as each query's `tokensMax`. */
  propose(live: readonly LiveResponse[]): Drafts {
    if (this.#options.system === "head") return draftsOf(live.map((one) => this.#path(one, null)));
    for (const one of live) this.#follow(one);
    const trees = this.#drafter.propose(
      live.map(({ query }) => ({ ...query, probabilityMin: 0, tree: "table" })),
    );
    return draftsOf(live.map((one, i) => this.#path(one, treeOf(trees, i))));
  }

  #follow(one: LiveResponse): void {
    const keys = keysOf(Number(one.query.groupId) + 1, one.query.sampleIndex);
    for (let at = this.#taken.get(one) ?? 0; at < one.at; at += 1) {
      this.#followers.take(keys, tailOf(one, at), one.response[at] ?? 0);
    }
    this.#taken.set(one, one.at);
  }

  #path(one: LiveResponse, tree: Tree | null): PathToken[] {
    const { query, response, at } = one;
    const { system, acceptance, real } = this.#options;
    const seed = fold32(Number(query.groupId), query.sampleIndex);
    const tail = tailOf(one, at);
    const path: PathToken[] = [];
    // The head goes on behind its own tokens, and cannot tell that one was wrong.
    let follows = system !== "table";
    let isRight = true;
    let node = ROOT;
    let whole = 1;
    for (let place = 0; place < query.tokensMax; place += 1) {
      const own = follows ? (acceptance[place] ?? 0) : 0;
      isRight = isRight && fold32(seed, at + place) / 2 ** 32 < own;
      const drawn = isRight ? (response[at + place] ?? WRONG) : WRONG;
      const ofHead = own > 0 ? (real?.said(one, place) ?? drawn) : WRONG;
      const ofTable = tree === null ? NOTHING : (tree(node) ?? this.#outside(one, tail));
      const both = { path, ofHead, ofTable, own };
      const token = (real?.takesTable(one, both) ?? ofTable.share > own) ? ofTable.token : ofHead;
      whole *= Math.max(own, ofTable.share);
      if (whole < query.probabilityMin || whole === 0) break;
      path.push({ token, probability: whole });
      tail.push(token);
      tail.shift();
      node = tree?.(node, token)?.node ?? LEFT;
      follows = follows && token === ofHead;
    }
    return path;
  }

  #outside({ query }: LiveResponse, tail: readonly number[]): Said {
    const keys = keysOf(Number(query.groupId) + 1, query.sampleIndex);
    const found = this.#followers.next(keys, tail);
    return found === null ? NOTHING : { token: found.token, node: LEFT, share: found.probability };
  }
}

/** The CONTEXT tokens before position `at`. */
function tailOf({ prompt, response }: LiveResponse, at: number): number[] {
  return Array.from({ length: CONTEXT }, (_, i) => {
    const place = at - CONTEXT + i;
    return (place < 0 ? prompt.at(place) : response[place]) ?? 0;
  });
}

/** The likeliest token behind a node, or a certain one; null: the tree has none. */
type Tree = (node: number, token?: number) => Said | null;

/** Of two tokens behind the same node the likelier comes first. */
function treeOf({ start, tokens, parents, probabilities }: Drafts, query: number): Tree {
  const from = start[query] ?? 0;
  const to = start[query + 1] ?? from;
  return (node, wanted) => {
    for (let i = from; i < to; i += 1) {
      const token = tokens[i] ?? WRONG;
      if (parents[i] !== node || (wanted !== undefined && token !== wanted)) continue;
      const before = node < 0 ? 1 : (probabilities[from + node] ?? 1);
      return { token, node: i - from, share: (probabilities[i] ?? 0) / before };
    }
    return null;
  };
}

/** One path a query. */
export function draftsOf(paths: readonly (readonly PathToken[])[]): Drafts {
  const all = paths.flat();
  let end = 0;
  return {
    start: Int32Array.from([0, ...paths.map(({ length }) => (end += length))]),
    tokens: Int32Array.from(all, ({ token }) => token),
    parents: Int32Array.from(paths.flatMap((path) => path.map((_, i) => i - 1))),
    probabilities: Float32Array.from(all, ({ probability }) => probability),
  };
}
