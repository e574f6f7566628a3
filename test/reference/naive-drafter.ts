// A drafter that searches plain arrays.

import type { GroupId } from "../../src/core/base/ids.ts";
import type { Drafter, DraftQuery, Drafts, UpdateResult } from "../../src/core/draft/drafter.ts";

const CONTEXT = 3;
const TREE_WIDTH = 2;

interface NaiveDraft {
  readonly tokens: number[];
  readonly parents: number[];
  readonly probabilities: number[];
}

type Wanted = Pick<DraftQuery, "tokensMax" | "probabilityMin" | "tree">;

/**
 * Counts of the tokens that followed the longest suffix of `own`, of at most CONTEXT tokens, that occurs with a
 * continuation.
 */
function continuations(texts: readonly number[][], own: readonly number[]): [number, number][] {
  for (let length = Math.min(CONTEXT, own.length); length > 0; length -= 1) {
    const suffix = own.slice(-length);
    const counts = new Map<number, number>();
    let total = 0;
    for (const text of texts) {
      for (let at = 0; at + length < text.length; at += 1) {
        if (!suffix.every((token, i) => text[at + i] === token)) continue;
        const next = text[at + length] ?? -1;
        counts.set(next, (counts.get(next) ?? 0) + 1);
        total += 1;
      }
    }
    if (total > 0) {
      return [...counts]
        .map(([token, count]): [number, number] => [token, count / total])
        .sort((a, b) => b[1] - a[1] || a[0] - b[0]);
    }
  }
  return [];
}

/** A path of the likeliest continuations, or a tree of the two likeliest of each, level by level. */
function naiveDraft(
  texts: readonly number[][],
  own: readonly number[],
  { tokensMax, probabilityMin, tree }: Wanted,
): NaiveDraft {
  const draft: NaiveDraft = { tokens: [], parents: [], probabilities: [] };
  const open: { context: number[]; parent: number; probability: number }[] = [
    { context: [...own], parent: -1, probability: 1 },
  ];
  for (let node = open.shift(); node !== undefined; node = open.shift()) {
    const likeliest = continuations(texts, node.context).slice(0, tree ? TREE_WIDTH : 1);
    for (const [token, share] of likeliest) {
      const probability = node.probability * share;
      if (draft.tokens.length === tokensMax || probability < probabilityMin) continue;
      draft.tokens.push(token);
      draft.parents.push(node.parent);
      draft.probabilities.push(probability);
      const parent = draft.tokens.length - 1;
      open.push({ context: [...node.context, token], parent, probability });
    }
  }
  return draft;
}

export class NaiveDrafter implements Drafter {
  readonly #groups = new Map<GroupId, { prompt: number[]; responses: number[][] }>();
  /** Names of groups that were dropped, in order. */
  readonly dropped: GroupId[] = [];
  /** Largest number of queries in one call. */
  queriesMost = 0;

  get groups(): number {
    return this.#groups.size;
  }

  register(groupId: GroupId, prompt: Int32Array): void {
    if (!this.has(groupId)) this.#groups.set(groupId, { prompt: [...prompt], responses: [] });
  }

  has(groupId: GroupId): boolean {
    return this.#groups.has(groupId);
  }

  update(groupId: GroupId, index: number, offset: number, tokens: Int32Array): UpdateResult {
    const group = this.#groups.get(groupId);
    if (group === undefined) return { kind: "ok" };
    const response = group.responses[index] ?? [];
    group.responses[index] = response;
    if (offset > response.length) return { kind: "gap", have: response.length };
    response.push(...tokens.subarray(response.length - offset));
    return { kind: "ok" };
  }

  drop(groupId: GroupId): void {
    if (this.#groups.delete(groupId)) this.dropped.push(groupId);
  }

  clear(): void {
    this.#groups.clear();
  }

  propose(queries: readonly DraftQuery[]): Drafts {
    this.queriesMost = Math.max(this.queriesMost, queries.length);
    const start = [0];
    const all: NaiveDraft = { tokens: [], parents: [], probabilities: [] };
    for (const query of queries) {
      const group = this.#groups.get(query.groupId);
      if (group !== undefined) {
        const texts = textsOf(group.prompt, group.responses);
        const own = [...group.prompt, ...(group.responses[query.sampleIndex] ?? [])];
        const draft = naiveDraft(texts, own, query);
        all.tokens.push(...draft.tokens);
        all.parents.push(...draft.parents);
        all.probabilities.push(...draft.probabilities);
      }
      start.push(all.tokens.length);
    }
    return {
      start: Int32Array.from(start),
      tokens: Int32Array.from(all.tokens),
      parents: Int32Array.from(all.parents),
      probabilities: Float32Array.from(all.probabilities),
    };
  }
}

/** The prompt stands before every response; a group without responses still has its prompt. */
function textsOf(prompt: number[], responses: readonly (number[] | undefined)[]): number[][] {
  const begun = responses.filter((response) => response !== undefined && response.length > 0);
  if (begun.length === 0) return [prompt];
  return begun.map((response) => [...prompt, ...(response ?? [])]);
}
