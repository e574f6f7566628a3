// The sums of a chaos run: over all seeds, and by kind of fault.

import Table from "cli-table3";
import { formatCount } from "../../../src/cli/format.ts";
import { CHAOS_KINDS, type ChaosKind } from "./plan.ts";
import type { SeedOutcome } from "./run.ts";

/** `rollouts`: with at least one fault of the kind. */
const newRow = () => ({ faults: 0, rollouts: 0, lost: 0, twice: 0, wrong: 0 });
type KindRow = ReturnType<typeof newRow>;

export class ChaosTally {
  readonly #all = newRow();
  /** Rows by kind of fault; "none": rollouts without one. */
  readonly #kinds = new Map<ChaosKind | "none", KindRow>();
  #responses = 0;
  #tokens = 0;
  readonly #failed: number[] = [];

  get failures(): number {
    return this.#failed.length;
  }

  /** Line of the progress display. */
  get line(): string {
    const { rollouts, faults, lost, twice, wrong } = this.#all;
    return `${rollouts} rollouts, ${faults} faults: ${lost} lost, ${twice} twice, ${wrong} wrong`;
  }

  add(outcome: SeedOutcome): void {
    const { faults, plan, isRight, responses, tokens } = outcome;
    this.#responses += responses;
    this.#tokens += tokens;
    if (!isRight) this.#failed.push(plan.seed);
    addTo(this.#all, outcome, faults.length);
    for (const kind of new Set<ChaosKind | "none">(faults.length === 0 ? ["none"] : faults)) {
      const row = this.#kinds.get(kind) ?? newRow();
      this.#kinds.set(kind, row);
      addTo(row, outcome, faults.filter((one) => one === kind).length);
    }
  }

  /** The tally as a table, without a final line end. */
  table(): string {
    const table = new Table({
      head: ["fault", "times", "rollouts", "lost", "twice", "wrong"],
      style: { head: [], border: [], compact: true },
      colAligns: ["left", ...Array<"right">(5).fill("right")],
    });
    for (const [kind, row] of [...this.#rows(), ["all", this.#all] as const]) {
      table.push([kind, ...Object.values(row).map(formatCount)]);
    }
    const counts = `${formatCount(this.#responses)} responses, ${formatCount(this.#tokens)} tokens checked`;
    const failed = this.failures === 0 ? "" : `; ${this.failures} rollouts FAILED`;
    return `${table.toString()}\n${this.line}; ${counts}${failed}`;
  }

  json(seed: number): object {
    return {
      seed,
      ...this.#all,
      ...{ responses: this.#responses, tokens: this.#tokens },
      failed_seeds: this.#failed,
      kinds: Object.fromEntries(this.#rows()),
    };
  }

  #rows(): (readonly [string, KindRow])[] {
    return [...CHAOS_KINDS, "none" as const].flatMap((kind) => {
      const row = this.#kinds.get(kind);
      return row === undefined ? [] : [[kind, row] as const];
    });
  }
}

function addTo(row: KindRow, { verdict }: SeedOutcome, faults: number): void {
  row.faults += faults;
  row.rollouts += 1;
  row.lost += verdict.lost;
  row.twice += verdict.twice;
  row.wrong += verdict.wrong;
}
