// The budget of one step: which tokens of all its drafts are kept.

import { expect, test } from "bun:test";
import { SuffixIndex } from "./suffix-index.ts";

const ids = (...tokens: number[]) => Int32Array.from(tokens);

test("step: under a budget the tokens of highest weight times probability are kept", () => {
  const index = new SuffixIndex({ learning: false }, () => {});
  const handle = index.create(ids(1, 2, 3)) ?? -1;
  for (const sample of [0, 1, 2, 3]) {
    index.append(handle, sample, ids(10, 11, 12 + (sample % 2), 14, 15, 16 + sample), 0);
  }
  for (const k of [6, 7]) index.append(handle, k, ids(10, 11).subarray(0, k - 5), 0);
  const weights = [1, 0.5, 2, 0.25];
  const drafts = (budget?: number) => {
    index.begin(4);
    for (const [i, k] of [5, 6, 7, 8].entries()) {
      const query = { tree: k !== 6, tokensMax: 20, probabilityMin: 0.01 };
      index.draft(handle, k, query, weights[i]);
    }
    return index.step(budget);
  };
  const all = drafts();
  const whole = all.start.slice(0, 5);
  const gains: { gain: number; draft: number }[] = [];
  for (const [i, weight] of weights.entries()) {
    for (const p of all.probabilities.subarray(whole[i], whole[i + 1]))
      gains.push({ gain: p * weight, draft: i });
  }
  const tokens = all.tokens.slice(0, whole[4]);
  const parents = all.parents.slice(0, whole[4]);
  expect(gains.length).toBeGreaterThan(30);
  gains.sort((a, b) => b.gain - a.gain || a.draft - b.draft);
  for (const budget of [0, 1, 2, 7, 20, gains.length - 1, gains.length, 1000]) {
    const kept = drafts(budget);
    const wanted = [0, 1, 2, 3].map(
      (i) => gains.slice(0, budget).filter((g) => g.draft === i).length,
    );
    const sizes = [0, 1, 2, 3].map((i) => (kept.start[i + 1] ?? 0) - (kept.start[i] ?? 0));
    expect(sizes).toEqual(wanted);
    for (const i of [0, 1, 2, 3]) {
      const at = kept.start[i] ?? 0;
      const size = sizes[i] ?? 0;
      const from = whole[i] ?? 0;
      expect(kept.tokens.slice(at, at + size)).toEqual(tokens.slice(from, from + size));
      expect(kept.parents.slice(at, at + size)).toEqual(parents.slice(from, from + size));
    }
  }
});
