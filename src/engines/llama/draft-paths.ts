// Turns proposed drafts into root-to-leaf paths, each to be verified in a KV stream of its own. A linear
// draft is a tree with one leaf. It decides which paths a request gets within the streams and rows there are.

import type { Drafts } from "../../core/draft/drafter.ts";

export interface PathLimits {
  readonly pathsMax: number;
  readonly rowsMax: number;
  readonly tokensMax: number;
  /** KV tokens that each path after the first must copy. */
  readonly copyTokens: number;
}

/**
 * The paths of one step, flat: path p holds nodes[start[p]] .. nodes[start[p + 1] - 1], indices into the
 * step's Drafts from the first draft token on. Reused from step to step.
 */
export class DraftPaths {
  count = 0;
  /** What the last `add` took: batch rows, KV tokens (copies included), and distinct draft tokens. */
  readonly taken = { rows: 0, tokens: 0, nodes: 0 };
  /** start[count] is the end of the last path. */
  readonly start: Int32Array;
  readonly nodes: Int32Array;
  /** Stream and first row (that of the request's pending token) of each path; the engine's to fill. */
  readonly streams: Int32Array;
  readonly rows: Int32Array;
  readonly #covered: Uint8Array;
  readonly #hasChild: Uint8Array;

  constructor(options: { pathsMax: number; nodesMax: number; draftTokensMax: number }) {
    this.start = new Int32Array(options.pathsMax + 1);
    this.streams = new Int32Array(options.pathsMax);
    this.rows = new Int32Array(options.pathsMax);
    this.nodes = new Int32Array(options.nodesMax);
    this.#covered = new Uint8Array(options.draftTokensMax);
    this.#hasChild = new Uint8Array(options.draftTokensMax);
  }

  clear(): void {
    this.count = 0;
    this.start[0] = 0;
  }

  length(path: number): number {
    return (this.start[path + 1] as number) - (this.start[path] as number);
  }

  /** The node at `depth` (0 = first draft token) of the path. */
  node(path: number, depth: number): number {
    return this.nodes[(this.start[path] as number) + depth] as number;
  }

  /**
   * Adds up to `pathsMax` paths of the draft in [from, to): each time the leaf whose path adds the most
   * expected tokens not covered yet. The first may be cut short; a later one that does not fit, with
   * the copy of `copyTokens` and the pending row it needs, is left out. What it took is in `taken`.
   */
  add(drafts: Drafts, range: { from: number; to: number }, limits: PathLimits): void {
    const { taken } = this;
    taken.rows = 0;
    taken.tokens = 0;
    taken.nodes = 0;
    const size = Math.min(range.to - range.from, this.#covered.length);
    if (size <= 0) return;
    this.#markLeaves(drafts, range.from, size);
    for (let added = 0; added < limits.pathsMax && this.count < this.streams.length; added += 1) {
      const leaf = this.#bestLeaf(drafts, range.from, size);
      if (leaf < 0) return;
      const depth = depthOf(drafts, range.from, leaf);
      const pendingRows = added === 0 ? 0 : 1;
      const copied = added === 0 ? 0 : limits.copyTokens + 1;
      const nodesLeft = this.nodes.length - (this.start[this.count] as number);
      const room = Math.min(
        limits.rowsMax - taken.rows - pendingRows,
        limits.tokensMax - taken.tokens - copied,
        nodesLeft,
      );
      if (room < (added === 0 ? 1 : depth)) return;
      const kept = Math.min(depth, room);
      this.#write(drafts, range.from, leaf, { depth, kept });
      taken.rows += kept + pendingRows;
      taken.tokens += kept + copied;
    }
  }

  /**
   * The path in [from, to) that continues the first `depth` nodes of `path` with `token`; `path` itself
   * if it does; -1: none.
   */
  follow(
    drafts: Drafts,
    at: { from: number; to: number; path: number; depth: number },
    token: number,
  ): number {
    const { path, depth } = at;
    if (this.#continues(drafts, path, depth, token)) return path;
    const last = depth > 0 ? this.node(path, depth - 1) : -1;
    for (let other = at.from; other < at.to; other += 1) {
      if (!this.#continues(drafts, other, depth, token)) continue;
      if (depth === 0 || this.node(other, depth - 1) === last) return other;
    }
    return -1;
  }

  #continues(drafts: Drafts, path: number, depth: number, token: number): boolean {
    return depth < this.length(path) && drafts.tokens[this.node(path, depth)] === token;
  }

  #markLeaves(drafts: Drafts, from: number, size: number): void {
    this.#covered.fill(0, 0, size);
    this.#hasChild.fill(0, 0, size);
    for (let i = 0; i < size; i += 1) {
      const parent = drafts.parents[from + i] as number;
      if (parent >= 0) this.#hasChild[parent] = 1;
    }
  }

  /** The first leaf with the greatest sum of probabilities over its path's uncovered nodes. */
  #bestLeaf(drafts: Drafts, from: number, size: number): number {
    let best = -1;
    let bestGain = 0;
    for (let leaf = 0; leaf < size; leaf += 1) {
      if (this.#hasChild[leaf] === 1 || this.#covered[leaf] === 1) continue;
      let gain = 0;
      for (let i = leaf; i >= 0 && this.#covered[i] === 0; i = drafts.parents[from + i] as number) {
        gain += drafts.probabilities[from + i] as number;
      }
      if (best < 0 || gain > bestGain) {
        best = leaf;
        bestGain = gain;
      }
    }
    return best;
  }

  #write(drafts: Drafts, from: number, leaf: number, size: { depth: number; kept: number }): void {
    const begin = this.start[this.count] as number;
    let depth = size.depth;
    for (let i = leaf; i >= 0; i = drafts.parents[from + i] as number) {
      depth -= 1;
      if (depth < size.kept) {
        this.nodes[begin + depth] = from + i;
        if (this.#covered[i] === 0) this.taken.nodes += 1;
      }
      this.#covered[i] = 1;
    }
    this.count += 1;
    this.start[this.count] = begin + size.kept;
  }
}

function depthOf(drafts: Drafts, from: number, leaf: number): number {
  let depth = 0;
  for (let i = leaf; i >= 0; i = drafts.parents[from + i] as number) depth += 1;
  return depth;
}
