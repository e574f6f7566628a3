// What each response says: as plain vLLM drew it in a run that is not measured. Kept in the project's cache by model,
// prompt, seed and limit, so that it is drawn once. Only the engines learn it (vllm_bench.py).

import { existsSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { ROOT } from "../../../test/vllm/fleet.ts";
import { iteration } from "./drive.ts";
import type { Texts } from "./engine-log.ts";
import type { Servers, System } from "./systems.ts";

const CACHE = join(ROOT, ".cache", "bench-vllm", "texts.json");

export interface TextsOptions {
  readonly model: string;
  readonly eos: number;
  readonly prompts: readonly (readonly number[])[];
  readonly siblings: number;
  readonly maxTokens: number;
  /** Seed of the first prompt's first response; the others count up. */
  readonly seed: number;
}

/** Texts by prompt. The last token is the end of text, or the response has `maxTokens`. */
export async function textsOf(
  plain: System,
  options: TextsOptions,
  servers: Servers,
): Promise<Texts[]> {
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
    const plan = { eos, prompts: prompts.slice(from, to), texts: null };
    const run = await iteration(plain, { ...options, plan, seed: seedOf(from) }, servers);
    for (const [i, texts] of run.texts.entries()) known[keyOf(from + i)] = texts;
    const s = run.wallS.toFixed(0);
    console.error(`texts of ${to - from} groups, drawn by plain vLLM: ${s} s`);
    mkdirSync(dirname(CACHE), { recursive: true });
    writeFileSync(CACHE, `${JSON.stringify(known)}\n`);
  }
  return prompts.map((_, group) => known[keyOf(group)] ?? []);
}

function readCache(): Record<string, Texts> {
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
