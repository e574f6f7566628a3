// Finds the finished request that a prompt goes on from, where no client names a session: by hashes of the blocks that
// its text begins with. A hash only proposes; the caller compares the tokens.

import { fold32 } from "../core/base/hash.ts";
import type { RolloutRequest } from "../core/request/buffer.ts";

const BLOCK_TOKENS = 16;
/** Limit of known blocks; the oldest are dropped first. */
const BLOCKS_MAX = 262_144;

export class KnownTexts<T> {
  /** Owner of each block, by the hash of all tokens up to the block's end. */
  readonly #owners = new Map<number, T>();

  /** Adds the blocks of the request's response. Those of its prompt are left out: its siblings have them too. */
  add(owner: T, scope: number, { spec, response }: RolloutRequest): void {
    const from = spec.prompt.length;
    eachBlock(scope, [spec.prompt, response.tokens()], (hash, end) => {
      if (end <= from) return;
      this.#owners.delete(hash);
      this.#owners.set(hash, owner);
    });
    for (const hash of this.#owners.keys()) {
      if (this.#owners.size <= BLOCKS_MAX) return;
      this.#owners.delete(hash);
    }
  }

  /** Owners whose texts may begin as the prompt does, the one with the most blocks in common last. */
  owners(scope: number, prompt: Int32Array): T[] {
    const found = new Set<T>();
    if (this.#owners.size === 0) return [];
    eachBlock(scope, [prompt], (hash) => {
      const owner = this.#owners.get(hash);
      if (owner === undefined) return;
      found.delete(owner);
      found.add(owner);
    });
    return [...found];
  }
}

function eachBlock(
  scope: number,
  texts: readonly Int32Array[],
  take: (hash: number, end: number) => void,
): void {
  let hash = scope;
  let end = 0;
  for (const text of texts) {
    for (const token of text) {
      hash = fold32(hash, token);
      end += 1;
      if (end % BLOCK_TOKENS === 0) take(hash, end);
    }
  }
}
