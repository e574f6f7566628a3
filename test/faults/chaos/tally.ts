// The sums of a chaos run: over all seeds, and by kind of fault.

import Table from "cli-table3";
import { formatCount, formatSeconds, formatShare } from "../../../src/cli/format.ts";
import { EngineTime } from "../../../src/observe/metrics/effective-time.ts";
import { CHAOS_KINDS, type ChaosKind } from "./plan.ts";
import type { Effort, SeedOutcome } from "./run.ts";

interface KindRow {
  faults: number;
  /** Rollouts with at least one of them. */
  rollouts: number;
  lost: number;
  twice: number;
  wrong: number;
  readonly effort: Effort;
}

const newRow = (): KindRow => ({
  ...{ faults: 0, rollouts: 0, lost: 0, twice: 0, wrong: 0 },
  effort: { time: new EngineTime(), kept: 0, again: 0 },
});

export class ChaosTally {
  readonly #all = newRow();
  /** Rows by kind of fault; "none": rollouts without one. */
  readonly #kinds = new Map<ChaosKind | "none", KindRow>();
  #responses = 0;
  failures = 0;
  readonly #failed: number[] = [];

  get wallS(): number {
    return this.#all.effort.time.wallMs / 1000;
  }

  /** Line of the progress display. */
  get line(): string {
    const { rollouts, faults, lost, twice, wrong } = this.#all;
    return `${rollouts} rollouts, ${faults} faults: ${lost} lost, ${twice} twice, ${wrong} wrong`;
  }

  add(outcome: SeedOutcome): void {
    this.#responses += outcome.responses;
    if (!outcome.isRight) {
      this.failures += 1;
      this.#failed.push(outcome.plan.seed);
    }
    addTo(this.#all, outcome, outcome.faults.length);
    for (const kind of new Set([...outcome.faults, ...(outcome.faults.length ? [] : ["none"])])) {
      const known = kind as ChaosKind | "none";
      const row = this.#kinds.get(known) ?? newRow();
      this.#kinds.set(known, row);
      addTo(row, outcome, outcome.faults.filter((one) => one === kind).length);
    }
  }

  /** The tally as a table, without a final line end. */
  table(): string {
    const table = new Table({
      head: ["fault", "times", "rollouts", "lost", "twice", "wrong", "again", "wall", "ETTR"],
      style: { head: [], border: [], compact: true },
      colAligns: ["left", ...Array<"right">(8).fill("right")],
    });
    for (const [kind, row] of this.#rows()) table.push([kind, ...cellsOf(row)]);
    table.push(["all", ...cellsOf(this.#all)]);
    const { rollouts, effort, lost, twice, wrong } = this.#all;
    const what = `${formatCount(rollouts)} rollouts, ${formatCount(this.#responses)} responses, ${formatCount(effort.kept)} tokens checked`;
    const failed = this.failures === 0 ? "" : `; ${this.failures} rollouts FAILED`;
    const ettr = `ETTR ${ettrOf(effort).toFixed(3)} over ${formatSeconds(this.wallS)} of rollouts`;
    return `${table.toString()}\n${what}: ${lost} lost, ${twice} twice, ${wrong} wrong${failed}\n${ettr}`;
  }

  json(seed: number): object {
    const kinds = Object.fromEntries(this.#rows().map(([kind, row]) => [kind, jsonOf(row)]));
    const { length: failures } = this.#failed;
    return {
      seed,
      responses: this.#responses,
      ...jsonOf(this.#all),
      failures,
      failed_seeds: this.#failed,
      kinds,
    };
  }

  #rows(): (readonly [string, KindRow])[] {
    return [...CHAOS_KINDS, "none" as const].flatMap((kind) => {
      const row = this.#kinds.get(kind);
      return row === undefined ? [] : [[kind, row] as const];
    });
  }
}

function addTo(row: KindRow, { verdict, effort }: SeedOutcome, faults: number): void {
  row.faults += faults;
  row.rollouts += 1;
  row.lost += verdict.lost;
  row.twice += verdict.twice;
  row.wrong += verdict.wrong;
  row.effort.time.add(effort.time);
  row.effort.kept += effort.kept;
  row.effort.again += effort.again;
}

const ettrOf = (effort: Effort): number => effort.time.ettr(effort);

function cellsOf({ faults, rollouts, lost, twice, wrong, effort }: KindRow): string[] {
  return [
    ...[faults, rollouts, lost, twice, wrong, effort.again].map(formatCount),
    formatSeconds(effort.time.wallMs / 1000 / rollouts),
    formatShare(ettrOf(effort)),
  ];
}

function jsonOf({ faults, rollouts, lost, twice, wrong, effort }: KindRow): object {
  const { kept: tokens, again: tokens_again, time } = effort;
  const wall_s = time.wallMs / 1000;
  const ettr = ettrOf(effort);
  return { rollouts, faults, lost, twice, wrong, tokens, tokens_again, wall_s, ettr };
}
