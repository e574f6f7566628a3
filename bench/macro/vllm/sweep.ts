// Which number of draft tokens suits vLLM's own drafts best: each number against plain vLLM, in rounds of their own.

import Table from "cli-table3";
import type { Workload } from "./drive.ts";
import { figuresOf, figuresOfAll } from "./figures.ts";
import { said, speedup } from "./report.ts";
import { runRounds } from "./rounds.ts";
import type { LaunchSettings, Servers, System } from "./systems.ts";

interface Variant {
  readonly system: "ngram" | "suffix";
  readonly tokens: number;
  readonly launch: Partial<LaunchSettings>;
}

const VARIANTS: readonly Variant[] = [
  ...[2, 4, 8].map((tokens) => ({
    ...{ system: "ngram" as const, tokens },
    launch: { ngramTokens: tokens },
  })),
  ...[4, 8, 16].map((tokens) => ({
    ...{ system: "suffix" as const, tokens },
    launch: { suffixTokens: tokens },
  })),
];

export async function sweep(
  plain: System,
  workloads: readonly Workload[],
  servers: Servers,
): Promise<string> {
  const table = new Table({
    head: ["", "draft tokens", "wall s", "plain's / its", "tail s", "plain's / its", "tokens/step"],
    style: { head: [], border: [] },
  });
  for (const { system, tokens, launch } of VARIANTS) {
    const drafting = await servers.open(system, launch);
    const runs = await runRounds([plain, drafting], workloads, servers);
    await servers.close(system);
    const found = new Map([...runs].map(([name, of]) => [name, figuresOfAll(of.map(figuresOf))]));
    const figures = found.get(system);
    if (figures === undefined) continue;
    table.push([
      ...[system, String(tokens), figures.wall_s.toFixed(2)],
      ...[said(speedup(found, ["plain", system], "wall_s")), figures.tail_s.toFixed(2)],
      said(speedup(found, ["plain", system], "tail_s")),
      figures.tokens_per_step.toFixed(2),
    ]);
  }
  return table.toString();
}
