// The bench's table, ratios, notes and JSON.

import Table from "cli-table3";
import type { SystemFigures } from "./figures.ts";
import { type Ratio, ratioOf } from "./statistics.ts";
import type { SystemName } from "./systems.ts";

type Span = "wall_s" | "tail_s";
export type Found = ReadonlyMap<SystemName, SystemFigures>;

/** Share of other processes' CPU time from which times are not comparable. */
const BUSY_SHARE = 0.05;

const spans = (figures: SystemFigures, key: Span): number[] =>
  figures.rounds.map((round) => round[key]);

/** How many times as fast `of` is as `base`, by round; null: one of them was not run. */
export function speedup(
  found: Found,
  pair: readonly [SystemName, SystemName],
  key: Span,
): Ratio | null {
  const [base, of] = pair.map((name) => found.get(name));
  if (base === undefined || of === undefined) return null;
  return ratioOf(spans(base, key), spans(of, key));
}

export function said(ratio: Ratio | null): string {
  if (ratio === null) return "-";
  const { mean, low, high } = ratio;
  if (!Number.isFinite(mean)) return "-";
  if (low === null || high === null) return mean.toFixed(2);
  return `${mean.toFixed(2)} (${low.toFixed(2)}-${high.toFixed(2)})`;
}

const percent = (part: number, whole: number): string =>
  whole === 0 ? "-" : `${Math.round((100 * part) / whole)} %`;

/** One line for each figure, one column for each system. */
export function tableOf(found: Found): string {
  const systems = [...found.values()];
  const table = new Table({
    head: ["", ...found.keys()],
    style: { head: [], border: [] },
    colAligns: ["left", ...systems.map(() => "right" as const)],
  });
  const line = (name: string, value: (figures: SystemFigures) => string): void => {
    table.push([name, ...systems.map(value)]);
  };
  const times = (name: string, key: Span): void => {
    const cells = [...found.keys()].map((system) => said(speedup(found, ["plain", system], key)));
    table.push([name, ...cells]);
  };
  line("wall s", (of) => of.wall_s.toFixed(2));
  times("plain's wall / its", "wall_s");
  line("tail s", (of) => of.tail_s.toFixed(2));
  times("plain's tail / its", "tail_s");
  line("output tokens", (of) => String(of.output_tokens));
  line("tokens/step", (of) => of.tokens_per_step.toFixed(2));
  line("engine steps", (of) => String(of.engine_steps));
  line("drafted", (of) => String(of.drafted_tokens));
  line("accepted", (of) => String(of.accepted_tokens));
  line("propose us/token", (of) => (of.propose_us / of.output_tokens).toFixed(1));
  line("preempted", (of) => String(of.preemptions));
  line("prompt tokens sent", (of) => String(of.prompt_tokens));
  line("  of these computed", (of) => String(of.prompt_tokens_computed));
  line("computed again", (of) => String(of.computed_again_tokens));
  line("moves", (of) => String(of.moves));
  line("moved KV found there", (of) => percent(of.moved_tokens_found, of.moved_tokens));
  line("running, mean", (of) => of.running_mean.toFixed(1));
  line("KV while requests wait", (of) => percent(of.kv_share_waiting, 1));
  line("CPU s, servers", (of) => of.servers_cpu_s.toFixed(1));
  line("CPU s, sidecar", (of) => of.sidecar_cpu_s.toFixed(1));
  line("CPU of idle sets", (of) => percent(of.idle_sets_cpu_share, 1));
  line("CPU of others", (of) => percent(of.others_cpu_share, 1));
  return table.toString();
}

/** Sentences below the table. */
export function notesOf(found: Found): string[] {
  const notes: string[] = [];
  for (const of of ["foretoken_plugin", "foretoken_plugin_pool"] as const) {
    const wall = speedup(found, ["suffix", of], "wall_s");
    const tail = speedup(found, ["suffix", of], "tail_s");
    if (wall !== null)
      notes.push(`suffix's time / ${of}'s: wall ${said(wall)}, tail ${said(tail)}`);
  }
  notes.push("Ratios are geometric means over rounds, with 95 % t intervals.");
  const shares = [...found.values()].flatMap(({ rounds }) =>
    rounds.map(({ others_cpu_share }) => others_cpu_share),
  );
  const most = Math.max(...shares);
  if (most >= BUSY_SHARE) {
    const [least, largest] = [percent(Math.min(...shares), 1), percent(most, 1)];
    notes.push(
      `The machine was too busy to compare times: other processes used ${least} to ${largest} of its CPU time.`,
    );
  }
  return notes;
}

export function reportOf(found: Found, conditions: object): object {
  const ratios = Object.fromEntries(
    [...found.keys()].map((name) => [
      name,
      {
        wall_over_plain: speedup(found, ["plain", name], "wall_s"),
        tail_over_plain: speedup(found, ["plain", name], "tail_s"),
        wall_over_suffix: speedup(found, ["suffix", name], "wall_s"),
        tail_over_suffix: speedup(found, ["suffix", name], "tail_s"),
      },
    ]),
  );
  return { conditions, systems: Object.fromEntries(found), ratios, notes: notesOf(found) };
}
