// What the core does with given records, as this host sees it: every step's appends and asks with the drafts that came
// back. Texts are variants of a few stories, by a seeded generator, so that drafts are long and often right.

import { loadCore } from "../../../src/core/wasm/load.ts";
import { SuffixIndex } from "../../../src/core/wasm/suffix-index.ts";

/** One call into the core, or what precedes the first. */
export type GoldenOperation =
  | { op: "create"; prompt: number[]; handle: number | null }
  | { op: "history"; handle: number; tokens: number[] }
  | { op: "drop"; handle: number }
  | {
      op: "step";
      /** Handle, sequence, tokens. */
      appends: [number, number, number[]][];
      /** Handle, sequence, tokens at most, 1 for a tree, least probability, weight. */
      asks: [number, number, number, number, number, number][];
      /** Tokens of all drafts together, at most. */
      budget: number;
      starts: number[];
      tokens: number[];
      parents: number[];
      probabilities: number[];
      /** Handles of groups that ran out of room in it. */
      full: number[];
    };

export interface GoldenVector {
  readonly learning: boolean;
  readonly limit_bytes: number;
  readonly operations: readonly GoldenOperation[];
}

const BUDGET_NONE = 0x7fffffff;
const VOCABULARY = 400;

/** Numbers below `below`, the same in every run (Park and Miller). */
class Numbers {
  #state: number;

  constructor(seed: number) {
    this.#state = seed;
  }

  below(below: number): number {
    this.#state = (this.#state * 48_271) % 2_147_483_647;
    return this.#state % below;
  }

  text(length: number): number[] {
    return Array.from({ length }, () => this.below(VOCABULARY));
  }

  /** One token in ten differs, and it begins somewhere else. */
  variant(story: readonly number[]): number[] {
    const begin = this.below(20);
    const turned = [...story.slice(begin), ...story.slice(0, begin)];
    return turned.map((token) => (this.below(10) === 0 ? this.below(VOCABULARY) : token));
  }
}

interface Query {
  readonly tokensMax: number;
  readonly tree: boolean;
  readonly probabilityMin: number;
}

class Recorder {
  readonly operations: GoldenOperation[] = [];
  readonly #index: SuffixIndex;
  #full: number[] = [];

  constructor(options: { learning: boolean; limitBytes: number }) {
    this.#index = new SuffixIndex(options, (handle) => this.#full.push(handle));
  }

  create(prompt: number[]): number {
    const handle = this.#index.create(Int32Array.from(prompt));
    this.operations.push({ op: "create", prompt, handle });
    return handle ?? -1;
  }

  history(handle: number, tokens: number[]): void {
    this.#index.past(handle, Int32Array.from(tokens));
    this.operations.push({ op: "history", handle, tokens });
  }

  drop(handle: number): void {
    this.#index.drop(handle);
    this.operations.push({ op: "drop", handle });
  }

  /** Returns the drafts, in the order of the asks. */
  step(
    appends: [number, number, number[]][],
    asks: readonly (readonly [number, number, Query, number])[],
    budget: number,
  ): number[][] {
    const index = this.#index;
    index.begin(asks.length);
    for (const [handle, sequence, tokens] of appends) {
      index.append(handle, sequence, Int32Array.from(tokens), 0);
    }
    for (const [handle, sequence, query, weight] of asks)
      index.draft(handle, sequence, query, weight);
    const views = index.step(budget);
    const starts = [...views.start.subarray(0, asks.length + 1)];
    const count = starts.at(-1) ?? 0;
    const tokens = [...views.tokens.subarray(0, count)];
    this.operations.push({
      op: "step",
      appends,
      asks: asks.map(([handle, sequence, { tokensMax, tree, probabilityMin }, weight]) => [
        ...[handle, sequence, tokensMax, tree ? 1 : 0],
        ...[Math.fround(probabilityMin), weight],
      ]) as [number, number, number, number, number, number][],
      budget,
      starts,
      tokens,
      parents: [...views.parents.subarray(0, count)],
      probabilities: [...views.probabilities.subarray(0, count)],
      full: this.#full,
    });
    this.#full = [];
    return asks.map((_, i) => tokens.slice(starts[i], starts[i + 1]));
  }
}

const LIMIT_BYTES = 64 * 2 ** 20;
const PATH: Query = { tokensMax: 8, tree: false, probabilityMin: 0.1 };
const TREE: Query = { tokensMax: 12, tree: true, probabilityMin: 0.05 };

/** Groups of responses that grow step by step, as in an engine: drafts are accepted as far as they are right. */
function engineRun(options: {
  seed: number;
  learning: boolean;
  query: Query;
  budget: number;
  steps: number;
}): GoldenVector {
  const { learning, query, budget, steps } = options;
  const numbers = new Numbers(options.seed);
  const recorder = new Recorder({ learning, limitBytes: LIMIT_BYTES });
  const rows = [0, 1].flatMap((group) => {
    const story = numbers.text(120);
    const handle = recorder.create(numbers.text(12));
    if (group === 1) recorder.history(handle, numbers.variant(story));
    return [0, 1, 2, 3].map((sequence) => ({
      handle,
      sequence,
      text: numbers.variant(story),
      at: 0,
      draft: [] as number[],
    }));
  });
  for (let step = 0; step < steps; step += 1) {
    const running = rows.filter((row) => row.at < row.text.length - 1);
    const appends = running.map((row): [number, number, number[]] => {
      let count = 0;
      // A tree's first path is not known here: its rows grow by one token.
      while (
        !query.tree &&
        row.draft[count] === row.text[row.at + count] &&
        count < row.draft.length
      )
        count += 1;
      const tokens = row.text.slice(row.at, row.at + count + 1);
      row.at += tokens.length;
      return [row.handle, row.sequence, tokens];
    });
    const asks = running.map(
      (row) => [row.handle, row.sequence, query, row.sequence === 0 ? 1.5 : 1] as const,
    );
    const drafts = recorder.step(appends, asks, budget);
    for (const [i, row] of running.entries()) row.draft = drafts[i] ?? [];
  }
  recorder.drop(rows[0]?.handle ?? -1);
  return { learning, limit_bytes: LIMIT_BYTES, operations: recorder.operations };
}

/** A core so small that its groups run out of room, and what it then still does. */
function fullRun(): GoldenVector {
  const limitBytes = 900_000;
  const numbers = new Numbers(77);
  const recorder = new Recorder({ learning: false, limitBytes });
  const first = recorder.create(numbers.text(50));
  for (let step = 0; step < 12; step += 1) {
    const sequence = step % 3;
    recorder.step(
      [[first, sequence, numbers.text(400)]],
      [[first, sequence, PATH, 1]],
      BUDGET_NONE,
    );
  }
  recorder.drop(first);
  const second = recorder.create(numbers.text(50));
  const story = numbers.text(40);
  recorder.step([[second, 0, story]], [], BUDGET_NONE);
  recorder.step([[second, 1, story.slice(0, 10)]], [[second, 1, PATH, 1]], BUDGET_NONE);
  return { learning: false, limit_bytes: limitBytes, operations: recorder.operations };
}

/** Vectors by file name. */
export function coreVectors(): Record<string, GoldenVector> {
  // The ABI is checked once, with its message.
  loadCore();
  const run = { query: PATH, budget: BUDGET_NONE, steps: 60 };
  return {
    path: engineRun({ ...run, seed: 11, learning: false }),
    learning: engineRun({ ...run, seed: 12, learning: true }),
    tree: engineRun({ ...run, seed: 13, learning: true, query: TREE, steps: 40 }),
    budget: engineRun({ ...run, seed: 14, learning: true, budget: 10 }),
    full: fullRun(),
  };
}
