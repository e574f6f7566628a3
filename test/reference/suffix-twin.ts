// The slow, obvious twin of the core's group index: it counts every substring by brute force and drafts
// from those counts with the rules of assembly/draft, written over strings of tokens.

import type { Drafts } from "../../src/core/wasm/suffix-index.ts";

/** A context: its occurrences, and those of each continuation. */
interface Context {
  count: number;
  readonly next: Map<number, number>;
}

export interface TwinDraft {
  readonly tokens: number[];
  readonly parents: number[];
  readonly probabilities: number[];
}

/** The draft of one query in the core's arrays. */
export function draftIn(
  { start, tokens, parents, probabilities }: Drafts,
  query: number,
): TwinDraft {
  const [from, to] = [start[query] ?? 0, start[query + 1] ?? 0];
  return {
    tokens: [...tokens.subarray(from, to)],
    parents: [...parents.subarray(from, to)],
    probabilities: [...probabilities.subarray(from, to)],
  };
}

export function unexpectedFull(): never {
  throw new Error("a group is full");
}

export interface TwinQuery {
  readonly tokensMax: number;
  readonly probabilityMin: number;
}

interface Item {
  readonly p: number;
  readonly text: readonly number[];
  readonly token: number;
  readonly parent: number;
}

/** A context that is interpolated: its counts times `scale` are shares. */
interface Level {
  readonly text: readonly number[];
  readonly scale: number;
}

/** The contexts of one draft token, longest first, and what they leave to any token alike. */
interface Blend {
  readonly levels: readonly Level[];
  readonly rest: number;
}

const CLASSES = 4;
const SHARE_REST = 0.05;
const WEIGHT_MIN = 0.1;
const SHARE_PART = 0.5;
const SCAN_MAX = 64;
const PROBABILITY_FLOOR = 1 / 128;

const { fround } = Math;

/** log(odds), linear between eight steps an octave from 2^-10 to 2^11, in single precision as in the core. */
function stretch(p: number): number {
  const odds = fround(p / Math.max(1 - p, 1e-9));
  if (odds < 2 ** -10) return fround(Math.log(2 ** -10));
  if (odds >= 2 ** 11) return fround(Math.log(2 ** 11));
  let exponent = Math.floor(Math.log2(odds));
  // Rounding in log2 must not move a power of two.
  if (2 ** exponent > odds) exponent -= 1;
  if (2 ** (exponent + 1) <= odds) exponent += 1;
  const eighths = (odds / 2 ** exponent - 1) * 8;
  const step = Math.floor(eighths);
  const at = (i: number) => fround(Math.log(2 ** exponent * (1 + i / 8)));
  return at(step) + (at(step + 1) - at(step)) * (eighths - step);
}

/** The logistic function, linear between sixteen steps a unit in [-12, 12]. */
function squash(z: number): number {
  const at = (Math.min(Math.max(z, -12), 12 - 0.001) + 12) * 16;
  const step = Math.floor(at);
  const value = (i: number) => fround(1 / (1 + Math.exp(-(i / 16 - 12))));
  return value(step) + (value(step + 1) - value(step)) * (at - step);
}

/** The probability without learning (assembly/draft/mixer.ts). */
function accepted(share: number, length: number): number {
  const l = Math.min(Math.floor(Math.log2(length)), 5);
  return squash(-0.6 + 0.053 * l + 0.74 * stretch(share));
}

export class SuffixTwin {
  readonly prompt: readonly number[];
  readonly contextTokens: number;
  readonly outputs: number[][] = [];
  #contexts: Map<string, Context> | null = null;

  constructor(prompt: readonly number[], contextTokens: number) {
    this.prompt = prompt;
    this.contextTokens = contextTokens;
  }

  append(sequence: number, tokens: readonly number[]): void {
    while (this.outputs.length <= sequence) this.outputs.push([]);
    this.outputs[sequence]?.push(...tokens);
    this.#contexts = null;
  }

  /** Every substring that occurs, the empty one included. */
  substrings(): number[][] {
    const keys = [...this.#all().keys()];
    return keys.map((key) => (key === "" ? [] : key.split(",").map(Number)));
  }

  count(text: readonly number[]): number {
    return this.#context(text).count;
  }

  /** The most frequent continuation, the lowest token on ties; null if there is none. */
  best(text: readonly number[]): number | null {
    let best: number | null = null;
    let count = 0;
    for (const [token, n] of this.#context(text).next) {
      if (n > count || (n === count && best !== null && token < best)) [best, count] = [token, n];
    }
    return best;
  }

  /** The longest context that the sequence drafts from. */
  match(sequence: number): number[] {
    const text = [...this.prompt, ...(this.outputs[sequence] ?? [])];
    return text.slice(Math.max(0, text.length - this.contextTokens));
  }

  path(sequence: number, query: TwinQuery): TwinDraft {
    const draft: TwinDraft = { tokens: [], parents: [], probabilities: [] };
    const pMin = Math.max(Math.fround(query.probabilityMin), PROBABILITY_FLOOR);
    let text: readonly number[] = this.match(sequence);
    let ends = this.#ownEnds(sequence);
    let p = 1;
    while (draft.tokens.length < query.tokensMax) {
      const blend = this.#blend(text, ends);
      const [token, q] = this.#mostProbable(blend);
      if (token === null) break;
      p *= q;
      if (p < pMin) break;
      emit(draft, token, draft.tokens.length - 1, p);
      text = this.#after(blend, token);
      ends = 0;
    }
    return draft;
  }

  tree(sequence: number, query: TwinQuery): TwinDraft {
    const draft: TwinDraft = { tokens: [], parents: [], probabilities: [] };
    const pMin = Math.max(Math.fround(query.probabilityMin), PROBABILITY_FLOOR);
    const queue: Item[] = [];
    const expand = (text: readonly number[], p: number, parent: number, ends: number): void => {
      const blend = this.#blend(text, ends);
      for (const token of this.#candidates(blend, (pMin / p) * SHARE_PART)) {
        const q = p * this.#accepted(blend, token);
        if (q >= pMin) queue.push({ p: q, text: this.#after(blend, token), token, parent });
      }
    };
    expand(this.match(sequence), 1, -1, this.#ownEnds(sequence));
    while (draft.tokens.length < query.tokensMax) {
      queue.sort(byRank);
      const item = queue.shift();
      if (item === undefined) break;
      emit(draft, item.token, item.parent, item.p);
      expand(item.text, item.p, draft.tokens.length - 1, 0);
    }
    return draft;
  }

  /** The end of the sequence is an occurrence without continuation, unless others went on from the prompt's end. */
  #ownEnds(sequence: number): number {
    if ((this.outputs[sequence]?.length ?? 0) > 0) return 1;
    return this.#started() === 0 ? 1 : 0;
  }

  #started(): number {
    return this.outputs.filter((output) => output.length > 0).length;
  }

  /** One suffix of `text` for each set of places where suffixes end, longest first, without the empty one. */
  #classes(text: readonly number[]): number[][] {
    const classes: number[][] = [];
    let seen = -1;
    for (let from = 0; from < text.length; from += 1) {
      const suffix = text.slice(from);
      const n = this.count(suffix);
      if (n !== seen) classes.push(suffix);
      seen = n;
    }
    return classes;
  }

  /** Witten and Bell: each context that has been continued leaves deg / (total + deg) to the next. */
  #blend(text: readonly number[], ends: number): Blend {
    const levels: Level[] = [];
    let weight = 1;
    for (const suffix of this.#classes(text)) {
      const total = this.count(suffix) - ends;
      const degree = this.#context(suffix).next.size;
      if (degree === 0 || total < 1) continue;
      const scale = weight / (total + degree);
      levels.push({ text: suffix, scale });
      weight = scale * degree;
      if (levels.length === CLASSES || weight < WEIGHT_MIN) break;
    }
    return { levels, rest: weight * SHARE_REST };
  }

  #accepted(blend: Blend, token: number): number {
    let share = 0;
    for (const { text, scale } of blend.levels) {
      const n = this.#context(text).next.get(token);
      if (n !== undefined) share += scale * n;
    }
    return accepted(share + blend.rest, this.#longest(blend.levels[0]?.text ?? []));
  }

  /** The context behind the token: what the longest context that has it becomes. */
  #after(blend: Blend, token: number): number[] {
    const level = blend.levels.find(({ text }) => this.#context(text).next.has(token));
    return [...(level?.text ?? []), token];
  }

  #candidates(blend: Blend, shareMin: number): Set<number> {
    const candidates = new Set<number>();
    for (const { text, scale } of blend.levels) {
      const { next } = this.#context(text);
      const only = next.size > SCAN_MAX ? this.best(text) : null;
      for (const [token, n] of next) {
        if (only !== null && token !== only) continue;
        if (scale * n >= shareMin) candidates.add(token);
      }
    }
    return candidates;
  }

  /** The best of the contexts' best continuations. */
  #mostProbable(blend: Blend): [number | null, number] {
    let best: number | null = null;
    let bestQ = 0;
    for (const { text } of blend.levels) {
      const token = this.best(text);
      if (token === null || token === best) continue;
      const q = this.#accepted(blend, token);
      if (q > bestQ || (q === bestQ && best !== null && token < best)) [best, bestQ] = [token, q];
    }
    return [best, bestQ];
  }

  /** Length of the longest string that ends wherever `text` does; more than 64 is all the same. */
  #longest(text: readonly number[]): number {
    let longest = [...text];
    for (let more: readonly number[] | null = longest; more !== null; ) {
      longest = [...more];
      more = longest.length > 64 ? null : this.#oneLonger(longest);
    }
    return longest.length;
  }

  /** The text with the token that always stands before it; null if there is none. */
  #oneLonger(text: readonly number[]): number[] | null {
    const n = this.count(text);
    for (const token of this.#context([]).next.keys()) {
      const longer = [token, ...text];
      if (this.count(longer) === n) return longer;
    }
    return null;
  }

  #context(text: readonly number[]): Context {
    return this.#all().get(text.join(",")) ?? { count: 0, next: new Map() };
  }

  #all(): Map<string, Context> {
    this.#contexts ??= this.#build();
    return this.#contexts;
  }

  #build(): Map<string, Context> {
    const contexts = new Map<string, Context>([["", { count: 0, next: new Map() }]]);
    const end = this.prompt.length;
    for (let i = 1; i <= end; i += 1) {
      const weight = i === end ? Math.max(1, this.#started()) : 1;
      addEnd(contexts, this.prompt.slice(0, i), weight);
    }
    for (const output of this.outputs) {
      const text = [...this.prompt, ...output];
      for (let i = end + 1; i <= text.length; i += 1) addEnd(contexts, text.slice(0, i), 1);
    }
    return contexts;
  }
}

/** Counts every suffix of `text`, each also as a continuation of what precedes its last token. */
function addEnd(contexts: Map<string, Context>, text: readonly number[], weight: number): void {
  for (let from = 0; from <= text.length; from += 1) {
    const suffix = text.slice(from);
    const key = suffix.join(",");
    const context = contexts.get(key) ?? { count: 0, next: new Map() };
    contexts.set(key, context);
    context.count += weight;
    const token = suffix.pop();
    if (token === undefined) continue;
    const before = suffix.join(",");
    const parent = contexts.get(before) ?? { count: 0, next: new Map() };
    contexts.set(before, parent);
    parent.next.set(token, (parent.next.get(token) ?? 0) + weight);
  }
}

function byRank(a: Item, b: Item): number {
  if (a.p !== b.p) return b.p - a.p;
  if (a.parent !== b.parent) return a.parent - b.parent;
  return a.token - b.token;
}

function emit(draft: TwinDraft, token: number, parent: number, p: number): void {
  draft.tokens.push(token);
  draft.parents.push(parent);
  draft.probabilities.push(Math.fround(p));
}
