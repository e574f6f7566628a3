// Identifies a prompt across weight epochs and restarts, together with what generates for it: a model, an adapter.

import { fold32, hashString } from "../base/hash.ts";

/** 53 bits of two 32-bit hashes. Prompts that collide share a history, whose drafts verification rejects. */
export function promptKey(prompt: Int32Array, scope = ""): number {
  const seed = scope === "" ? 0 : hashString(scope);
  let high = prompt.length ^ seed;
  let low = ~prompt.length ^ seed;
  for (let i = 0; i < prompt.length; i += 1) {
    const token = prompt[i] ?? 0;
    high = fold32(high, token);
    low = fold32(low, token);
  }
  return high * 2 ** 21 + (low >>> 11);
}
