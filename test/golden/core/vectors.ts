// What the core does with recorded operations, as this host sees it: every step's appends and asks with the drafts that come
// back. The operations are in the files, of texts that are variants of a few stories; their outcome is what is golden.

import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
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

/** The vector's operations again, with what comes of them now. */
function replayed({ learning, limit_bytes: limitBytes, operations }: GoldenVector): GoldenVector {
  let full: number[] = [];
  const index = new SuffixIndex({ learning, limitBytes }, (handle) => full.push(handle));
  const again = operations.map((one): GoldenOperation => {
    if (one.op === "create") return { ...one, handle: index.create(Int32Array.from(one.prompt)) };
    if (one.op === "history") index.past(one.handle, Int32Array.from(one.tokens));
    if (one.op === "drop") index.drop(one.handle);
    if (one.op !== "step") return one;
    index.begin(one.asks.length);
    for (const [handle, sequence, tokens] of one.appends) {
      index.append(handle, sequence, Int32Array.from(tokens), 0);
    }
    for (const [handle, sequence, tokensMax, tree, probabilityMin, weight] of one.asks) {
      index.draft(handle, sequence, { tokensMax, tree: tree === 1, probabilityMin }, weight);
    }
    const views = index.step(one.budget);
    const starts = [...views.start.subarray(0, one.asks.length + 1)];
    const count = starts.at(-1) ?? 0;
    const [tokens, parents, probabilities] = [views.tokens, views.parents, views.probabilities].map(
      (view) => [...view.subarray(0, count)],
    ) as [number[], number[], number[]];
    const step = { ...one, starts, tokens, parents, probabilities, full };
    full = [];
    return step;
  });
  return { learning, limit_bytes: limitBytes, operations: again };
}

/** Vectors by file name. */
export function coreVectors(): Record<string, GoldenVector> {
  // The ABI is checked once, with its message.
  loadCore();
  const files = readdirSync(import.meta.dir).filter((name) => name.endsWith(".json"));
  return Object.fromEntries(
    files.map((name) => {
      const text = readFileSync(join(import.meta.dir, name), "utf8");
      return [name.slice(0, -".json".length), replayed(JSON.parse(text) as GoldenVector)];
    }),
  );
}
