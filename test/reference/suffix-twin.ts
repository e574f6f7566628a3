// The slow, obvious twin of the core's group index: it counts every substring by brute force and drafts
// from those counts with the rules of assembly/suffix/propose.ts, written over strings of tokens.

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

export interface TwinAsk {
  readonly tokensMax: number;
  readonly probabilityMin: number;
}

interface Item {
  readonly p: number;
  readonly text: readonly number[];
  /** null: go on in this shorter context. */
  readonly token: number | null;
  readonly parent: number;
}

const DISCOUNT = 0.5;
const CLASSES = 4;
const SCAN_MAX = 64;
const PROBABILITY_FLOOR = 1 / 512;

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

  path(sequence: number, ask: TwinAsk): TwinDraft {
    const draft: TwinDraft = { tokens: [], parents: [], probabilities: [] };
    const pMin = Math.max(Math.fround(ask.probabilityMin), PROBABILITY_FLOOR);
    let text = this.match(sequence);
    let ends = this.#ownEnds(sequence);
    let p = 1;
    while (draft.tokens.length < ask.tokensMax) {
      const classes = this.#gather(text, ends);
      const [token, q] = this.#mostProbable(classes, ends);
      p *= Math.min(1, q);
      if (token === null || p < pMin) break;
      emit(draft, token, draft.tokens.length - 1, p);
      const from = classes.find((c) => this.#context(c.text).next.has(token));
      text = [...(from?.text ?? []), token];
      ends = 0;
    }
    return draft;
  }

  tree(sequence: number, ask: TwinAsk): TwinDraft {
    const draft: TwinDraft = { tokens: [], parents: [], probabilities: [] };
    const pMin = Math.max(Math.fround(ask.probabilityMin), PROBABILITY_FLOOR);
    const ends = this.#ownEnds(sequence);
    const queue: Item[] = [];
    const proposed = new Set<string>();
    const expand = (text: readonly number[], p: number, parent: number, own: number): void => {
      const [here, ...shorter] = this.#classes(text);
      if (here === undefined) return;
      const { next } = this.#context(here);
      const total = this.count(here) - own;
      const link = shorter[0];
      if (next.size === 0 || total < 1) {
        if (link !== undefined) queue.push({ p, text: link, token: null, parent });
        return;
      }
      const scale = p / total;
      const only = next.size > SCAN_MAX ? this.best(here) : null;
      for (const [token, n] of next) {
        const q = scale * (n - DISCOUNT);
        if (q < pMin || proposed.has(`${parent},${token}`)) continue;
        if (only !== null && token !== only) continue;
        proposed.add(`${parent},${token}`);
        queue.push({ p: q, text: [...here, token], token, parent });
      }
      const left = scale * DISCOUNT * next.size;
      if (link === undefined || left < pMin) return;
      queue.push({ p: Math.min(p, left), text: link, token: null, parent });
    };
    expand(this.match(sequence), 1, -1, ends);
    while (draft.tokens.length < ask.tokensMax) {
      queue.sort(byRank);
      const item = queue.shift();
      if (item === undefined) break;
      if (item.token === null) {
        expand(item.text, item.p, item.parent, item.parent < 0 ? ends : 0);
      } else {
        emit(draft, item.token, item.parent, Math.min(1, item.p));
        expand(item.text, item.p, draft.tokens.length - 1, 0);
      }
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

  #gather(text: readonly number[], ends: number): { text: number[]; weight: number }[] {
    const found: { text: number[]; weight: number }[] = [];
    let weight = 1;
    for (const suffix of this.#classes(text)) {
      const total = this.count(suffix) - ends;
      const degree = this.#context(suffix).next.size;
      if (degree === 0 || total < 1) continue;
      found.push({ text: suffix, weight });
      weight = Math.min(1, (weight * DISCOUNT * degree) / total);
      if (found.length === CLASSES) break;
    }
    return found;
  }

  #mostProbable(
    classes: readonly { text: number[]; weight: number }[],
    ends: number,
  ): [number | null, number] {
    let best: number | null = null;
    let bestQ = 0;
    for (const { text } of classes) {
      const token = this.best(text);
      if (token === null || token === best) continue;
      let q = 0;
      for (const c of classes) {
        const n = this.#context(c.text).next.get(token);
        if (n === undefined) continue;
        q += (c.weight * (n - DISCOUNT)) / (this.count(c.text) - ends);
      }
      if (q > bestQ || (q === bestQ && best !== null && token < best)) [best, bestQ] = [token, q];
    }
    return [best, bestQ];
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
  return (a.token ?? Number.MAX_VALUE) - (b.token ?? Number.MAX_VALUE);
}

function emit(draft: TwinDraft, token: number, parent: number, p: number): void {
  draft.tokens.push(token);
  draft.parents.push(parent);
  draft.probabilities.push(Math.fround(p));
}
