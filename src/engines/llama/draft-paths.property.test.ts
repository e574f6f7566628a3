import { expect, test } from "bun:test";
import fc from "fast-check";
import type { Drafts } from "../../core/draft/drafter.ts";
import { DraftPaths } from "./draft-paths.ts";

const SIZE = 32;

/** Random trees: each node's parent is an earlier one or the root; siblings differ; deeper is less likely. */
const treeArbitrary = fc
  .array(fc.record({ pick: fc.nat(), factor: fc.double({ min: 0.1, max: 1, noNaN: true }) }), {
    maxLength: SIZE,
  })
  .map((nodes): Drafts => {
    const parents = nodes.map(({ pick }, i) => (pick % (i + 1)) - 1);
    const probabilities: number[] = [];
    for (const [i, { factor }] of nodes.entries()) {
      const parent = parents[i] ?? -1;
      probabilities.push(factor * (parent < 0 ? 1 : (probabilities[parent] ?? 1)));
    }
    return {
      start: Int32Array.of(0, nodes.length),
      tokens: Int32Array.from(nodes, (_, i) => i),
      parents: Int32Array.from(parents),
      probabilities: Float32Array.from(probabilities),
    };
  });

const limitsArbitrary = fc.record({
  pathsMax: fc.integer({ min: 1, max: 6 }),
  rowsMax: fc.integer({ min: 0, max: 40 }),
  tokensMax: fc.integer({ min: 0, max: 200 }),
  copyTokens: fc.integer({ min: 1, max: 50 }),
});

const newPaths = () => new DraftPaths({ pathsMax: 16, nodesMax: 64, draftTokensMax: SIZE });

const nodesOf = (paths: DraftPaths, path: number): number[] =>
  Array.from({ length: paths.length(path) }, (_, i) => paths.node(path, i));

test("add: every path runs from the root along parents, distinct paths, within every limit", () => {
  fc.assert(
    fc.property(treeArbitrary, limitsArbitrary, (drafts, limits) => {
      const paths = newPaths();
      paths.clear();
      paths.add(drafts, { from: 0, to: drafts.tokens.length }, limits);
      expect(paths.count).toBeLessThanOrEqual(limits.pathsMax);
      let rows = 0;
      let tokens = 0;
      const seen = new Set<number>();
      const texts = new Set<string>();
      for (let path = 0; path < paths.count; path += 1) {
        const nodes = nodesOf(paths, path);
        expect(nodes.length).toBeGreaterThan(0);
        nodes.forEach((node, depth) => {
          expect(drafts.parents[node]).toBe(depth === 0 ? -1 : (nodes[depth - 1] ?? -2));
          seen.add(node);
        });
        texts.add(nodes.join());
        rows += nodes.length + (path > 0 ? 1 : 0);
        tokens += nodes.length + (path > 0 ? 1 + limits.copyTokens : 0);
      }
      expect(texts.size).toBe(paths.count);
      expect(paths.taken).toEqual({ rows, tokens, nodes: seen.size });
      expect(rows).toBeLessThanOrEqual(limits.rowsMax);
      expect(tokens).toBeLessThanOrEqual(limits.tokensMax);
    }),
  );
});

test("add: with room for all, every token of the tree is on a path", () => {
  fc.assert(
    fc.property(treeArbitrary, (drafts) => {
      const paths = new DraftPaths({ pathsMax: 64, nodesMax: 2048, draftTokensMax: SIZE });
      paths.clear();
      const limits = { pathsMax: 64, rowsMax: 1e6, tokensMax: 1e6, copyTokens: 1 };
      paths.add(drafts, { from: 0, to: drafts.tokens.length }, limits);
      expect(paths.taken.nodes).toBe(drafts.tokens.length);
    }),
  );
});

test("follow: walks exactly the tokens of a path, and leaves at the first other token", () => {
  fc.assert(
    fc.property(treeArbitrary, limitsArbitrary, (drafts, limits) => {
      const paths = newPaths();
      paths.clear();
      paths.add(drafts, { from: 0, to: drafts.tokens.length }, limits);
      for (let target = 0; target < paths.count; target += 1) {
        let path = 0;
        nodesOf(paths, target).forEach((node, depth) => {
          const at = { from: 0, to: paths.count, path, depth };
          expect(paths.follow(drafts, at, SIZE)).toBe(-1);
          path = paths.follow(drafts, at, drafts.tokens[node] ?? -1);
          expect(nodesOf(paths, path).slice(0, depth + 1)).toEqual(
            nodesOf(paths, target).slice(0, depth + 1),
          );
        });
      }
    }),
  );
});

test("add: the most probable leaf's path comes first, and is cut where room ends", () => {
  const drafts: Drafts = {
    start: Int32Array.of(0, 4),
    tokens: Int32Array.of(1, 2, 3, 4),
    parents: Int32Array.of(-1, -1, 1, 2),
    probabilities: Float32Array.of(0.5, 0.4, 0.3, 0.2),
  };
  const paths = newPaths();
  paths.clear();
  const limits = { pathsMax: 4, rowsMax: 2, tokensMax: 100, copyTokens: 10 };
  paths.add(drafts, { from: 0, to: 4 }, limits);
  expect(paths.count).toBe(1);
  expect(nodesOf(paths, 0)).toEqual([1, 2]);
});
