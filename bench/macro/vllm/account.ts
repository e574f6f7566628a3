// Where the time of a run goes, from the engines' step logs. For servers in parallel:
//
//   wall = tokens x step time / (requests in a step x tokens of a request in a step x busy share x servers)
//
// so the factors by which a system differs from plain multiply to its speedup.

import Table from "cli-table3";
import { median } from "../../../src/cli/rounds.ts";
import type { Run } from "./drive.ts";
import type { EngineLog, Step } from "./engine-log.ts";
import { computedAgain } from "./figures.ts";
import { sumOf } from "./statistics.ts";
import type { SystemName } from "./systems.ts";

/** Least rows of each class of steps. */
const ROW_CLASSES = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64] as const;

export interface Account {
  readonly wall_s: number;
  readonly tokens: number;
  readonly steps: number;
  readonly step_ms: number;
  readonly requests_per_step: number;
  /** Tokens of one request in a step. */
  readonly tokens_per_step: number;
  readonly rows_per_step: number;
  readonly draft_rows: number;
  readonly prefill_rows: number;
  readonly computed_again_tokens: number;
  /** Shares of the servers' time: in steps; between steps with requests there; without any request. */
  readonly busy_share: number;
  readonly between_share: number;
  readonly idle_share: number;
  readonly chunks: number;
  /** Time from the end of a chunk to the first step of the response's next one; median, and sum over all responses. */
  readonly between_chunks_ms: number;
  readonly between_chunks_s: number;
  /** Steps without prefill, by their number of rows. */
  readonly steps_by_rows: readonly RowClass[];
}

export interface RowClass {
  readonly rows_min: number;
  readonly steps: number;
  /** Median. */
  readonly ms: number;
}

export function accountOf(runs: readonly Run[]): Account {
  const steps = runs.flatMap(({ log }) => log.steps.flat());
  const total = (value: (step: Step) => number): number => sumOf(steps, value);
  const count = Math.max(1, steps.length);
  const requests = total((step) => step.requests);
  const busyS = total(({ beginS, endS }) => endS - beginS);
  const serverS = sumOf(runs, ({ wallS, log }) => wallS * log.steps.length);
  const betweenS = sumOf(runs, ({ log }) => sumOf(log.steps, betweenStepsS));
  const gaps = runs.flatMap(({ log }) => betweenChunksS(log));
  return {
    wall_s: sumOf(runs, ({ wallS }) => wallS) / runs.length,
    tokens: total(({ tokensMade }) => tokensMade),
    steps: steps.length,
    step_ms: (1000 * busyS) / count,
    requests_per_step: requests / count,
    tokens_per_step: total(({ tokensMade }) => tokensMade) / Math.max(1, requests),
    rows_per_step: total(({ rows }) => rows) / count,
    draft_rows: total(({ draftRows }) => draftRows),
    prefill_rows: total(({ prefillRows }) => prefillRows),
    computed_again_tokens: sumOf(runs, ({ log }) => computedAgain(log)),
    busy_share: busyS / serverS,
    between_share: betweenS / serverS,
    idle_share: 1 - (busyS + betweenS) / serverS,
    chunks: sumOf(runs, ({ log }) => log.ends.length),
    between_chunks_ms: gaps.length === 0 ? 0 : 1000 * median(gaps),
    between_chunks_s: sumOf(gaps, (s) => s),
    steps_by_rows: byRows(steps),
  };
}

function betweenStepsS(steps: readonly Step[]): number {
  return steps.reduce((sum, { beginS }, i) => {
    const before = steps[i - 1];
    return before === undefined || before.unfinished === 0 ? sum : sum + beginS - before.endS;
  }, 0);
}

/** Seconds from each chunk's end to the next begin of the same response, on whichever server. */
export function betweenChunksS({ ends, prefills }: EngineLog): number[] {
  const open = new Map<string, number>();
  const gaps: number[] = [];
  const events = [
    ...ends.map(({ atS, group, sample }) => ({ atS, key: `${group}/${sample}`, isEnd: true })),
    ...prefills.map(({ atS, group, sample }) => ({ atS, key: `${group}/${sample}`, isEnd: false })),
  ].toSorted((a, b) => a.atS - b.atS);
  for (const { atS, key, isEnd } of events) {
    const endS = open.get(key);
    if (isEnd) open.set(key, atS);
    else if (endS !== undefined) {
      gaps.push(atS - endS);
      open.delete(key);
    }
  }
  return gaps;
}

function byRows(steps: readonly Step[]): RowClass[] {
  return ROW_CLASSES.flatMap((rows_min, i) => {
    const below = ROW_CLASSES[i + 1] ?? Number.POSITIVE_INFINITY;
    const of = steps.filter(
      ({ rows, prefillRows }) => prefillRows === 0 && rows >= rows_min && rows < below,
    );
    if (of.length === 0) return [];
    return { rows_min, steps: of.length, ms: 1000 * median(of.map((s) => s.endS - s.beginS)) };
  });
}

export function accountTables(accounts: ReadonlyMap<SystemName, Account>): string {
  const all = [...accounts.values()];
  const newTable = (head: string) =>
    new Table({
      head: [head, ...accounts.keys()],
      style: { head: [], border: [] },
      colAligns: ["left", ...all.map(() => "right" as const)],
    });
  const table = newTable("");
  const line = (name: string, value: (of: Account) => string): void => {
    table.push([name, ...all.map(value)]);
  };
  const percent = (share: number): string => `${(100 * share).toFixed(1)} %`;
  line("wall s", (of) => of.wall_s.toFixed(2));
  line("steps", (of) => String(of.steps));
  line("requests in a step", (of) => of.requests_per_step.toFixed(2));
  line("rows in a step", (of) => of.rows_per_step.toFixed(2));
  line("tokens of a request in a step", (of) => of.tokens_per_step.toFixed(2));
  line("step ms, mean", (of) => of.step_ms.toFixed(1));
  line("rows of drafts", (of) => String(of.draft_rows));
  line("rows of prefill", (of) => String(of.prefill_rows));
  line("tokens computed again", (of) => String(of.computed_again_tokens));
  line("in steps", (of) => percent(of.busy_share));
  line("between steps", (of) => percent(of.between_share));
  line("idle", (of) => percent(of.idle_share));
  line("chunks", (of) => String(of.chunks));
  line("between chunks, median ms", (of) => of.between_chunks_ms.toFixed(1));
  line("between chunks, s of all", (of) => of.between_chunks_s.toFixed(1));
  const rows = newTable("median ms (steps), by rows, without prefill");
  for (const least of ROW_CLASSES) {
    const classes = all.map((of) => of.steps_by_rows.find(({ rows_min }) => rows_min === least));
    if (classes.every((of) => of === undefined)) continue;
    const cells = classes.map((of) =>
      of === undefined ? "-" : `${of.ms.toFixed(1)} (${of.steps})`,
    );
    rows.push([`${least}+`, ...cells]);
  }
  return [table.toString(), rows.toString(), factorTable(accounts, newTable)].join("\n");
}

/** Contribution of each factor to the speedup over plain. */
function factorTable(
  accounts: ReadonlyMap<SystemName, Account>,
  newTable: (head: string) => { push(row: string[]): unknown; toString(): string },
): string {
  const plain = accounts.get("plain");
  if (plain === undefined) return "";
  const table = newTable("speed over plain, by factors");
  const line = (name: string, ratio: (of: Account) => number): void => {
    table.push([name, ...[...accounts.values()].map((of) => ratio(of).toFixed(2))]);
  };
  line("tokens of a request in a step", (of) => of.tokens_per_step / plain.tokens_per_step);
  line("x requests in a step", (of) => of.requests_per_step / plain.requests_per_step);
  line("x step time", (of) => plain.step_ms / of.step_ms);
  line("x share of time in steps", (of) => of.busy_share / plain.busy_share);
  line("= speed", (of) => plain.wall_s / of.wall_s);
  return table.toString();
}
