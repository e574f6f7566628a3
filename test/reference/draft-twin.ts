// One draft of the slow twin of a core that learns: candidates, their features and probabilities, as a path or a tree
// (assembly/draft). Contexts are strings of tokens, counted by brute force; the order of steps is the core's.

import { type Features, type MixerTwin, oddsOf, stretch } from "./mixer-twin.ts";
import {
  type CrossNgramsTwin,
  countClass,
  crossClass,
  crossFrequency,
  crossToken,
  followerClass,
  NONE,
  type SequenceContext,
  SequenceNgramsTwin,
} from "./ngram-twins.ts";
import { HISTORY, type Substrings } from "./substrings.ts";
import type { TwinDraft, TwinQuery } from "./suffix-twin.ts";

const CONTEXTS = 4;
const REST = 0.05;
const WEIGHT_MIN = 0.1;
const INTERPOLATED_PART = 0.5;
const SURE = 0.6;
const FOLLOWER_PART = 0.7;
const SCAN_MAX = 64;
export const CROSS_CONTEXT_MAX = 8;
const KEPT_MAX = 64;
const PROBABILITY_FLOOR = 1 / 128;
const SEQUENCE_CONTEXTS: readonly SequenceContext[] = ["two", "one", "skip"];

export interface TwinDraftQuery extends TwinQuery {
  readonly group: number;
  readonly sequence: number;
  readonly tree: boolean;
}

/** A candidate that was judged for a draft, behind its token `parent`. */
export interface Judged {
  readonly features: Features;
  readonly token: number;
  readonly parent: number;
}

interface Continuation {
  readonly state: readonly number[];
  readonly token: number;
  readonly length: number;
}

export interface Remembered extends TwinDraft {
  readonly step: number;
  readonly tree: boolean;
  readonly judged: Judged[];
  /** By token of the draft plus one. */
  readonly continuations: Map<number, Continuation>;
  reached: number;
}

export interface Sequence {
  readonly key: number;
  readonly index: number;
  output: number[];
  /** The two tokens before the last, as far as feedback has seen them. */
  second: number;
  third: number;
  recovery: readonly number[] | null;
  agreed: number;
  left: number;
  drafted: boolean;
  draft: Remembered | null;
  since: number;
  earlier: number;
}

export interface Group {
  readonly serial: number;
  readonly prompt: readonly number[];
  readonly texts: Substrings;
  readonly sequences: Sequence[];
  started: number;
}

interface Position {
  readonly state: readonly number[];
  readonly ends: number;
  readonly before: readonly [number, number, number];
  readonly recovery: readonly number[] | null;
  readonly agreed: number;
}

/** A context that is interpolated: its counts times `scale` are parts of probabilities. */
interface Level {
  readonly text: readonly number[];
  readonly scale: number;
}

/** What all candidates of a position share. */
interface View {
  readonly position: Position;
  readonly levels: readonly Level[];
  readonly rest: number;
  readonly length: number;
}

export const lengthClass = (length: number): number =>
  Math.min(31 - Math.clz32(Math.max(length, 1)), 5);
const tokenClass = (token: number): number => Math.imul(token, 0x9e3779b1) >>> 21;
const fewer = (count: number): number => Math.min(Math.max(count, 1), 4) - 1;
export const acceptedOf = (sequence: Sequence): number => Math.max(sequence.since - 1, 0);

export function blankSequence(serial: number, index: number): Sequence {
  const blank = { output: [], second: 0, third: 0, recovery: null, agreed: 0, left: 0 };
  const rest = { drafted: false, draft: null, since: 0, earlier: 0 };
  return { key: SequenceNgramsTwin.key(serial, index), index, ...blank, ...rest };
}

export interface Parts {
  readonly mixer: MixerTwin;
  readonly sequenceNgrams: SequenceNgramsTwin;
  readonly crossNgrams: CrossNgramsTwin;
}

/** One draft of one sequence, undefined if it has not begun. */
export class DraftTwin {
  readonly #parts: Parts;
  readonly #texts: Substrings;
  readonly #key: number;
  readonly #source: number;
  readonly #length: number;
  readonly #recent: number;
  readonly #left: number;
  readonly #query: TwinDraftQuery;
  readonly #pMin: number;
  readonly #start: Position;
  readonly #draft: Remembered;

  constructor(
    parts: Parts,
    group: Group,
    known: Sequence | undefined,
    query: TwinDraftQuery,
    step: number,
  ) {
    const sequence = known ?? blankSequence(group.serial, query.sequence);
    const text = [...group.prompt, ...sequence.output];
    this.#parts = parts;
    this.#texts = group.texts;
    this.#key = sequence.key;
    this.#source = sequence.index % 128;
    this.#length = text.length;
    this.#recent = (Math.min(acceptedOf(sequence), 7) << 2) + sequence.earlier;
    this.#left = sequence.left;
    this.#query = query;
    this.#pMin = Math.max(Math.fround(query.probabilityMin), PROBABILITY_FLOOR);
    this.#start = {
      state: text,
      ends: sequence.output.length > 0 || group.started === 0 ? 1 : 0,
      before: [text.at(-1) ?? 0, sequence.second, sequence.third],
      recovery: sequence.recovery,
      agreed: sequence.agreed,
    };
    const lists = { tokens: [], parents: [], probabilities: [], judged: [] };
    this.#draft = { ...lists, step, tree: query.tree, continuations: new Map(), reached: -1 };
  }

  make(): Remembered {
    if (this.#query.tree) this.#tree();
    else this.#path();
    return this.#draft;
  }

  #path(): void {
    let position = this.#start;
    let p = 1;
    const { tokens, judged } = this.#draft;
    while (tokens.length < this.#query.tokensMax) {
      const view = this.#view(position);
      const best = this.#choose(view, (this.#pMin / p) * INTERPOLATED_PART);
      if (best === null) return;
      const parent = tokens.length - 1;
      const state = this.#behind(view, best.token);
      this.#continues(parent, state, best.token, view.length);
      judged.push({ features: best.features, token: best.token, parent });
      p *= best.p;
      if (p < this.#pMin) return;
      this.#emit(best.token, parent, p);
      position = this.#advance(position, best.token, state);
    }
  }

  #tree(): void {
    interface Item {
      readonly p: number;
      readonly token: number;
      readonly parent: number;
      readonly position: Position;
    }
    const queue: Item[] = [];
    const expand = (position: Position, p: number, parent: number): void => {
      const view = this.#view(position);
      const found = this.#candidates(view, (this.#pMin / p) * INTERPOLATED_PART);
      const parts = found.map((token) => this.#interpolated(view, token));
      const largest = Math.max(0, ...parts);
      const judged = found.map((token, i) => this.#judge(view, token, parts[i] === largest));
      const all = judged.reduce((sum, one) => sum + oddsOf(one.p), 1);
      let best: { q: number; token: number } | null = null;
      for (const { token, p: alone, features } of judged) {
        const q = oddsOf(alone) / all;
        if (this.#draft.judged.length < KEPT_MAX)
          this.#draft.judged.push({ features, token, parent });
        if (q > (best?.q ?? 0)) best = { q, token };
        if (p * q < this.#pMin) continue;
        const next = this.#advance(position, token, this.#behind(view, token));
        queue.push({ p: p * q, token, parent, position: next });
      }
      if (best === null) return;
      this.#continues(parent, this.#behind(view, best.token), best.token, view.length);
    };
    expand(this.#start, 1, -1);
    while (this.#draft.tokens.length < this.#query.tokensMax) {
      queue.sort((a, b) => b.p - a.p || a.parent - b.parent || a.token - b.token);
      const item = queue.shift();
      if (item === undefined) return;
      this.#emit(item.token, item.parent, item.p);
      if (this.#draft.tokens.length === this.#query.tokensMax) return;
      expand(item.position, item.p, this.#draft.tokens.length - 1);
    }
  }

  #emit(token: number, parent: number, p: number): void {
    this.#draft.tokens.push(token);
    this.#draft.parents.push(parent);
    this.#draft.probabilities.push(Math.fround(p));
  }

  #continues(parent: number, state: readonly number[], token: number, length: number): void {
    // The state's name as it is now: others may split it before the feedback.
    const named = this.#texts.longest(state);
    this.#draft.continuations.set(parent, { state: named, token, length });
  }

  #advance(position: Position, token: number, state: readonly number[]): Position {
    const { before, recovery, agreed } = position;
    const next = recovery === null ? null : [...recovery, token];
    return {
      state,
      ends: 0,
      before: [token, before[0], before[1]],
      recovery: next !== null && this.#texts.has(next) ? next : null,
      agreed: recovery === null ? agreed : agreed + 1,
    };
  }

  #view(position: Position): View {
    const levels: Level[] = [];
    let weight = 1;
    for (const text of this.#texts.suffixStates(position.state)) {
      const { count, next } = this.#texts.of(text);
      if (next.size === 0 || count <= position.ends) continue;
      const scale = weight / (count - position.ends + next.size);
      levels.push({ text, scale });
      weight = scale * next.size;
      if (levels.length === CONTEXTS || weight < WEIGHT_MIN) break;
    }
    const [longest] = levels;
    const length = longest === undefined ? 0 : this.#texts.longest(longest.text).length;
    return { position, levels, rest: weight * REST, length };
  }

  #interpolated(view: View, token: number): number {
    let p = 0;
    for (const { text, scale } of view.levels) {
      const count = this.#texts.of(text).next.get(token);
      if (count !== undefined) p += scale * count;
    }
    return p + view.rest;
  }

  #owner(view: View, token: number): readonly number[] | null {
    return view.levels.find(({ text }) => this.#texts.of(text).next.has(token))?.text ?? null;
  }

  /** Where the token leads: from the longest context of the position that has it, else the root. */
  #behind(view: View, token: number): readonly number[] {
    const owner = this.#owner(view, token);
    if (owner !== null) return [...owner, token];
    const states = [...this.#texts.suffixStates(view.position.state), []];
    const from = states.find((text) => this.#texts.of(text).next.has(token));
    return from === undefined ? [] : [...from, token];
  }

  #judge(view: View, token: number, isLikeliest: boolean) {
    const features = this.#features(view, token, isLikeliest);
    const p = this.#parts.mixer.probability(features, view.position.before[0], token);
    return { token, p, features };
  }

  #features(view: View, token: number, isLikeliest: boolean): Features {
    const { before } = view.position;
    const state = (context: SequenceContext) =>
      followerClass(this.#parts.sequenceNgrams.follower(this.#key, before, context), token);
    const [one, two] = [state("one"), state("two")];
    const lastUse = this.#parts.sequenceNgrams.lastUse(this.#key, before[0], token, this.#length);
    const likeliest = isLikeliest ? 1 : 0;
    return {
      logit: Math.fround(stretch(this.#interpolated(view, token))),
      states: {
        crossTwo: crossClass(this.#cross(view, 2), token),
        crossThree: crossClass(this.#cross(view, 3), token),
        recovery: this.#recoveryClass(view.position, token),
        one: one === 0 ? 0 : one * 8 + this.#age(before[0]),
        two,
        skip: state("skip"),
      },
      selected: {
        recent: this.#recent,
        recovered: this.#recoveredClass(view.position),
        before: tokenClass(before[0]),
        context: 6 * lengthClass(view.length) + 1 - likeliest + this.#writer(view, token),
        continued: this.#continued(view, token),
        lastUse: 2 * lastUse + likeliest,
        followers: two * 17 + one,
        token: tokenClass(token),
      },
    };
  }

  #age(first: number): number {
    return this.#parts.sequenceNgrams.age(this.#key, first, this.#length);
  }

  /** The cross-request context of `order` tokens; null if it is new or not looked at. */
  #cross(view: View, order: number) {
    if (view.length >= CROSS_CONTEXT_MAX) return null;
    return this.#parts.crossNgrams.context(view.position.before, order);
  }

  /** Who wrote the latest occurrence of the token in its longest context. */
  #writer(view: View, token: number): number {
    const owner = this.#owner(view, token);
    if (owner === null) return 0;
    const { source } = this.#texts.of([...owner, token]);
    return source === HISTORY ? 4 : source === this.#source ? 2 : 0;
  }

  #continued(view: View, token: number): number {
    const owner = this.#owner(view, token);
    if (owner === null) return 0;
    const { count, next } = this.#texts.of(owner);
    return Math.min(15, 2 * countClass(count - view.position.ends) + (next.size > 1 ? 1 : 0));
  }

  #recoveredClass({ recovery, agreed }: Position): number {
    return recovery === null ? 0 : 1 + this.#left + (agreed > 0 ? 8 : 0);
  }

  #recoveryClass({ recovery, agreed }: Position, token: number): number {
    if (recovery === null) return 0;
    const { count, next } = this.#texts.of(recovery);
    if (next.size === 0) return 0;
    const long = Math.min(agreed, 5);
    const continued = next.get(token);
    if (continued === undefined) return 300 + 4 * long + fewer(count);
    const isBest = this.#texts.best(recovery) === token ? 1 : 0;
    const rest = continued > count ? 3 : Math.min(countClass(count - continued), 3);
    return 1 + (4 * (2 * long + isBest) + fewer(continued)) * 4 + rest;
  }

  /** The best of what contexts, followers, recovery and the cross-request cache propose; null if there is none. */
  #choose(view: View, partMin: number) {
    const { sequenceNgrams, mixer } = this.#parts;
    const { before, recovery } = view.position;
    const tried = new Set<number>();
    const judged: { token: number; p: number; features: Features }[] = [];
    const bestP = () => Math.max(0, ...judged.map(({ p }) => p));
    const consider = (token: number | null, isLikeliest: boolean): void => {
      if (token === null || token === NONE || tried.has(token)) return;
      tried.add(token);
      judged.push(this.#judge(view, token, isLikeliest));
    };
    const best = () => judged.toSorted((a, b) => b.p - a.p || a.token - b.token)[0] ?? null;
    for (const [j, { text, scale }] of view.levels.entries()) {
      const token = this.#texts.best(text) ?? NONE;
      if (j !== 0 && scale * (this.#texts.of(text).next.get(token) ?? 0) < partMin) continue;
      consider(token, j === 0);
      if (bestP() >= SURE) return best();
    }
    for (const context of SEQUENCE_CONTEXTS) {
      const found = sequenceNgrams.follower(this.#key, before, context);
      if (found === null || bestP() >= SURE) continue;
      const run = Math.min(found.run, 4);
      const cls = context === "one" ? run * 8 + this.#age(before[0]) : run;
      if (mixer.frequency(context, cls) * FOLLOWER_PART > bestP()) consider(found.token, false);
    }
    if (recovery !== null) consider(this.#texts.best(recovery), false);
    for (const order of [3, 2, 1]) {
      const context = this.#cross(view, order);
      if (bestP() >= SURE || crossFrequency(context) <= bestP()) continue;
      consider(crossToken(context, 0), false);
    }
    return best();
  }

  /** All tokens that a tree looks at. */
  #candidates(view: View, partMin: number): number[] {
    const found = new Set<number>();
    for (const { text, scale } of view.levels) {
      const { next } = this.#texts.of(text);
      const best = this.#texts.best(text) ?? NONE;
      if (scale * (next.get(best) ?? 0) < partMin) continue;
      const only = next.size === 1 || next.size > SCAN_MAX;
      for (const [token, count] of next) {
        if (only ? token === best : scale * count >= partMin) found.add(token);
      }
    }
    const { before, recovery } = view.position;
    for (const context of SEQUENCE_CONTEXTS) {
      const follower = this.#parts.sequenceNgrams.follower(this.#key, before, context);
      if (follower !== null) found.add(follower.token).add(follower.earlier);
    }
    if (recovery !== null) found.add(this.#texts.best(recovery) ?? NONE);
    for (const order of [3, 2, 1]) {
      const context = this.#cross(view, order);
      for (let place = 0; place < 3; place += 1) found.add(crossToken(context, place));
    }
    found.delete(NONE);
    return [...found];
  }
}
