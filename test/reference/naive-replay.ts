// The slow, obvious twin of src/tools/replay: a drafter that searches plain arrays, and a replay of one group at
// a time written from the definitions. Groups draft from themselves alone, so what is live beside a
// group must not change its counts.

import type { GroupId } from "../../src/core/base/ids.ts";
import type { Drafter, DraftQuery, Drafts, UpdateResult } from "../../src/core/draft/drafter.ts";
import type { TraceGroup } from "../../src/tools/replay/recordings.ts";
import type { ReplayOptions, Tally } from "../../src/tools/replay/replay.ts";

const CONTEXT = 3;
const TREE_WIDTH = 2;

export interface NaiveDraft {
  readonly tokens: number[];
  readonly parents: number[];
  readonly probabilities: number[];
}

type Wanted = Pick<DraftQuery, "tokensMax" | "probabilityMin" | "tree">;

/** What followed the longest suffix of `own`, of CONTEXT tokens at most, that was ever continued. */
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
export function naiveDraft(
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
  /** Most queries of one call. */
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

/** All root-to-node paths of the draft; the longest that the text continues with. */
function acceptedBy(draft: NaiveDraft, rest: readonly number[]): number {
  let longest = 0;
  for (let node = 0; node < draft.tokens.length; node += 1) {
    const path: number[] = [];
    for (let at = node; at >= 0; at = draft.parents[at] ?? -1) path.unshift(draft.tokens[at] ?? -1);
    const fits = path.length <= rest.length && path.every((token, i) => rest[i] === token);
    if (fits) longest = Math.max(longest, path.length);
  }
  return longest;
}

/** The counts of one group. */
export function naiveReplay(group: TraceGroup, options: ReplayOptions): Tally {
  const { mode, siblings, drafter, budget, probabilityMin } = options;
  const wanted = { tokensMax: budget, probabilityMin, tree: drafter === "tree" };
  const all = group.responses.map((response) => [...response]);
  const prompt = [...group.prompt];
  const tally = { responses: 0, tokens: 0, steps: 0, drafted: 0, accepted: 0 };
  const one = (texts: number[][], target: number[], at: number): number => {
    const draft = naiveDraft(texts, [...prompt, ...target.slice(0, at)], wanted);
    const accepted = acceptedBy(draft, target.slice(at));
    const to = Math.min(target.length, at + accepted + 1);
    tally.steps += 1;
    tally.drafted += draft.tokens.length;
    tally.accepted += accepted;
    tally.tokens += to - at;
    return to;
  };
  if (mode === "complete") {
    for (const [i, target] of all.entries()) {
      tally.responses += 1;
      const others = all.filter((_, j) => j !== i).slice(0, siblings ?? all.length);
      const before = drafter === "self" ? [] : others;
      for (let at = 0; at < target.length; ) {
        at = one(textsOf(prompt, [...before, target.slice(0, at)]), target, at);
      }
    }
    return tally;
  }
  const targets = all.slice(0, siblings === null ? all.length : siblings + 1);
  tally.responses = targets.length;
  let at = targets.map(() => 0);
  while (at.some((length, i) => length < (targets[i]?.length ?? 0))) {
    // Everyone drafts from what all had when the round began.
    const out = targets.map((target, i) => target.slice(0, at[i]));
    at = targets.map((target, i) => {
      const length = at[i] ?? 0;
      if (length >= target.length) return length;
      const seen = drafter === "self" ? [out[i] ?? []] : out;
      return one(textsOf(prompt, seen), target, length);
    });
  }
  return tally;
}
