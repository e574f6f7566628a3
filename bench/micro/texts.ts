// The micro bench's text: groups of siblings from one seeded Markov source of order 1 to 3, so that they repeat
// each other and themselves about as much as sampled responses do (the last token picks the order,
// 50/35/15 %; a state has 1, 2, 4 or 32 continuations, 45/25/20/10 %; 3 % of the tokens jump).

import { fold32, mix32 } from "../../src/core/base/hash.ts";
import { generator, SEED } from "../harness.ts";

const VOCABULARY = 152_000;

/** Log-uniform: few frequent ids, many rare ones. */
function tokenOf(hash: number): number {
  return Math.floor(VOCABULARY ** (mix32(hash) / 4294967296));
}

/** Tokens by group and sibling. `tokens`: of one sibling. */
export function texts(groups: number, siblings: number, tokens: number): Int32Array[][] {
  return Array.from({ length: groups }, (_, group) => {
    const source = fold32(SEED, group);
    const states = Math.max(64, Math.floor(tokens * 0.3));
    return Array.from({ length: siblings }, (_unused, k) =>
      sibling(source, states, tokens, generator(fold32(source, k + 1))),
    );
  });
}

function sibling(source: number, states: number, length: number, random: () => number): Int32Array {
  const text = new Int32Array(length);
  let [a, b, c] = [0, 0, 0];
  for (let i = 0; i < length; i += 1) {
    if (random() < 0.03) [a, b, c] = [Math.floor(random() * 200), 0, 0];
    const order = mix32(fold32(source, a)) / 4294967296;
    let context = fold32(source, a);
    if (order > 0.5) context = fold32(context, b);
    if (order > 0.85) context = fold32(context, c);
    const state = fold32(source + 1, context % states);
    const kind = mix32(state) / 4294967296;
    const width = kind < 0.45 ? 1 : kind < 0.7 ? 2 : kind < 0.9 ? 4 : 32;
    const noise = random() < 0.02;
    const token = noise
      ? tokenOf(Math.floor(random() * 4294967296))
      : tokenOf(fold32(state, Math.floor(random() * width)));
    text[i] = token;
    [a, b, c] = [token, a, b];
  }
  return text;
}
