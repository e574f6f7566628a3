// How long each response is: as plain vLLM made it in a run that is not measured. Kept in the project's cache by model,
// prompt, seed and limit, so that it is made once. Only the engines learn it (vllm_bench.py).

import { existsSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { ROOT } from "../../../test/vllm/fleet.ts";
import { iteration } from "./drive.ts";
import type { Servers, System } from "./systems.ts";

const CACHE = join(ROOT, ".cache", "bench-vllm", "lengths.json");

export interface LengthsOptions {
  readonly model: string;
  readonly eos: number;
  readonly prompts: readonly (readonly number[])[];
  readonly siblings: number;
  readonly maxTokens: number;
  /** Of the first prompt's first response; the others count up. */
  readonly seed: number;
}

/** By prompt, of each response; 0: `maxTokens` ended it. */
export async function lengthsOf(
  plain: System,
  options: LengthsOptions,
  servers: Servers,
): Promise<number[][]> {
  const known = readCache();
  const { prompts, siblings, maxTokens, eos, model } = options;
  const weights = String(Bun.hash(readFileSync(join(model, "model.safetensors"))));
  const seedOf = (group: number) => options.seed + group * siblings;
  const keyOf = (group: number): string => {
    const parts = [weights, prompts[group], seedOf(group), siblings, maxTokens];
    return String(Bun.hash(JSON.stringify(parts)));
  };
  const missing = prompts.keys().filter((group) => known[keyOf(group)] === undefined);
  // Groups in a row share an iteration: seeds count up.
  for (const [from, to] of stretchesOf([...missing])) {
    const plan = { eos, prompts: prompts.slice(from, to), lengths: null };
    const run = await iteration(plain, { ...options, plan, seed: seedOf(from) }, servers);
    for (const [i, lengths] of run.lengths.entries()) {
      known[keyOf(from + i)] = lengths.map((tokens) => (tokens >= maxTokens ? 0 : tokens));
    }
    const s = run.wallS.toFixed(0);
    console.error(`lengths of ${to - from} groups, made by plain vLLM: ${s} s`);
    mkdirSync(dirname(CACHE), { recursive: true });
    writeFileSync(CACHE, `${JSON.stringify(known)}\n`);
  }
  return prompts.map((_, group) => known[keyOf(group)] ?? []);
}

function readCache(): Record<string, number[]> {
  return existsSync(CACHE) ? JSON.parse(readFileSync(CACHE, "utf8")) : {};
}

/** Ranges [from, to) of numbers that follow each other. */
export function stretchesOf(sorted: readonly number[]): [number, number][] {
  const stretches: [number, number][] = [];
  for (const value of sorted) {
    const last = stretches.at(-1);
    if (last !== undefined && last[1] === value) last[1] = value + 1;
    else stretches.push([value, value + 1]);
  }
  return stretches;
}
