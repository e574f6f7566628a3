// What earlier responses to the same prompt add to drafts, at equal drafted tokens: recorded responses of
// successive policies to the same prompts, replayed policy after policy as a trainer that comes back
// to its prompts would make them. Compares a replica without a history with one that has it, and with
// one whose history answers with another prompt's responses, which must do no harm.
//
//   bun bench/macro/history.ts TRACE [--drafter grouped,tree] [--drafted-per-step 2,4] [--folds 2]
//       [--generations 1] [--responses 8] [--live 8] [--fresh-seeds] [--json FILE]
//
// TRACE is in the trace format; its groups are named POLICY/PROMPT and policies stand in their order.
// Recordings may have used the same seeds for every policy, so that response i of one begins like
// response i of the next: policy k makes only the responses i with i = k modulo `folds`, and with fewer
// generations than folds no history ever holds the index that is drafted for. All folds are run. With `--fresh-seeds`
// each policy drew other random numbers, and all of its responses are made at once: a run of examples/grpo, as its
// `--record` writes it, has a policy for each step.

import { basename } from "node:path";
import { parseArgs } from "node:util";
import { History, type HistoryOptions } from "../../src/core/draft/history.ts";
import { Replica } from "../../src/core/draft/replica.ts";
import { Calibration } from "../../src/tools/replay/calibration.ts";
import { cpuClock, totalOf } from "../../src/tools/replay/cell.ts";
import type { TraceGroup } from "../../src/tools/replay/recordings.ts";
import { readGroups } from "../../src/tools/replay/recordings.ts";
import { type DrafterKind, replay, type Tally } from "../../src/tools/replay/replay.ts";
import { plainTable, writeReport } from "../harness.ts";
import { bisect } from "./threshold.ts";

export const HISTORIES = ["none", "same prompt", "other prompt"] as const;
export type HistoryKind = (typeof HISTORIES)[number];

export interface HistoryShape {
  readonly drafter: DrafterKind;
  readonly draftedPerStep: number;
  readonly folds: number;
  readonly history: HistoryOptions;
  readonly live: number;
}

export interface HistoryRow {
  readonly drafter: DrafterKind;
  readonly history: HistoryKind;
  readonly accepted_plus_1: number;
  /** accepted_plus_1 against no history. */
  readonly ratio: number;
  readonly drafted_per_step: number;
  readonly us_per_token: number;
  readonly ece: number | null;
  readonly probability_min: number;
  readonly responses: number;
}

interface Outcome {
  readonly total: Tally;
  readonly calibration: Calibration;
  readonly drafterMs: number;
}

const BUDGET = 16;
/** Drafted tokens are equal to within this part. */
const TOLERANCE = 0.005;
const RUNS_MAX = 14;

/** The groups of each policy, in order. */
export function byPolicy(groups: readonly TraceGroup[]): TraceGroup[][] {
  const policies = new Map<string, TraceGroup[]>();
  for (const group of groups) {
    const policy = group.name.slice(0, group.name.indexOf("/"));
    const list = policies.get(policy) ?? [];
    policies.set(policy, list);
    list.push(group);
  }
  return [...policies.values()];
}

/** Answers with the past of another prompt: that of the prompt half of all prompts further on. */
class OtherHistory extends History {
  readonly #other = new Map<string, Int32Array>();

  constructor(options: HistoryOptions, groups: readonly TraceGroup[]) {
    super(options);
    const prompts = [...new Map(groups.map(({ prompt }) => [prompt.join(), prompt])).values()];
    for (const [i, prompt] of prompts.entries()) {
      const other = prompts[(i + (prompts.length >> 1)) % prompts.length];
      if (other !== undefined) this.#other.set(prompt.join(), other);
    }
  }

  override past(prompt: Int32Array): readonly Int32Array[] {
    return super.past(this.#other.get(prompt.join()) ?? prompt);
  }
}

function newReplica(
  kind: HistoryKind,
  shape: HistoryShape,
  groups: readonly TraceGroup[],
): Replica {
  if (kind === "none") return new Replica();
  const isSame = kind === "same prompt";
  return new Replica({
    history: isSame ? new History(shape.history) : new OtherHistory(shape.history, groups),
  });
}

async function* foldOf(
  policy: readonly TraceGroup[],
  fold: number,
  folds: number,
): AsyncGenerator<TraceGroup> {
  for (const { name, prompt, responses } of policy) {
    yield { name, prompt, responses: responses.filter((_, i) => i % folds === fold) };
  }
}

/** Replays all policies, each fold with a replica of its own. The first has no past and is not counted. */
async function run(
  policies: readonly TraceGroup[][],
  kind: HistoryKind,
  shape: HistoryShape,
  probabilityMin: number,
): Promise<Outcome> {
  const { drafter, folds, live } = shape;
  const tallies: Tally[] = [];
  const calibration = new Calibration();
  let drafterMs = 0;
  for (let fold = 0; fold < folds; fold += 1) {
    const replica = newReplica(kind, shape, policies.flat());
    for (const [k, policy] of policies.entries()) {
      const outcome = await replay(
        foldOf(policy, (fold + k) % folds, folds),
        { drafter, mode: "concurrent", siblings: null, budget: BUDGET, probabilityMin, live },
        { drafter: replica, clock: cpuClock },
      );
      replica.clear();
      if (k === 0) continue;
      tallies.push(...outcome.groups);
      calibration.addAll(outcome.calibration);
      drafterMs += outcome.drafterMs;
    }
  }
  return { total: totalOf(tallies), calibration, drafterMs };
}

/** One row for each kind of history, each at the same number of drafted tokens a step. */
export async function compare(
  policies: readonly TraceGroup[][],
  shape: HistoryShape,
): Promise<HistoryRow[]> {
  const rows: HistoryRow[] = [];
  for (const history of HISTORIES) {
    const found = await bisect(
      async (probabilityMin) => {
        const outcome = await run(policies, history, shape, probabilityMin);
        return { outcome, drafted: outcome.total.drafted / Math.max(1, outcome.total.steps) };
      },
      { wanted: shape.draftedPerStep, tolerance: TOLERANCE, runsMax: RUNS_MAX },
    );
    const { total, calibration, drafterMs } = found.outcome;
    const accepted = 1 + total.accepted / Math.max(1, total.steps);
    rows.push({
      drafter: shape.drafter,
      history,
      accepted_plus_1: accepted,
      ratio: accepted / (rows[0]?.accepted_plus_1 ?? accepted),
      drafted_per_step: found.drafted,
      us_per_token: (1000 * drafterMs) / Math.max(1, total.tokens),
      ece: calibration.error(),
      probability_min: found.probabilityMin,
      responses: total.responses,
    });
  }
  return rows;
}

function tableOf(rows: readonly HistoryRow[]): string {
  const head = ["drafter", "history", "accepted + 1", "ratio", "drafted/step", "us/token", "ECE"];
  const cells = rows.map((row) => [
    row.drafter,
    row.history,
    row.accepted_plus_1.toFixed(3),
    row.ratio.toFixed(3),
    row.drafted_per_step.toFixed(2),
    row.us_per_token.toFixed(2),
    row.ece?.toFixed(4) ?? "-",
  ]);
  return plainTable(head, cells);
}

async function main(): Promise<void> {
  const { values, positionals } = parseArgs({
    allowPositionals: true,
    options: {
      drafter: { type: "string", default: "grouped,tree" },
      "drafted-per-step": { type: "string", default: "2,4" },
      folds: { type: "string", default: "2" },
      generations: { type: "string", default: "1" },
      responses: { type: "string", default: "8" },
      live: { type: "string", default: "8" },
      "fresh-seeds": { type: "boolean", default: false },
      json: { type: "string" },
    },
  });
  const [file] = positionals;
  if (file === undefined) throw new Error("name a trace: bun bench/macro/history.ts TRACE");
  const groups: TraceGroup[] = [];
  for await (const group of readGroups(file)) groups.push(group);
  const policies = byPolicy(groups);
  const generationsMax = Number(values.generations);
  const folds = values["fresh-seeds"] ? 1 : Number(values.folds);
  if (!values["fresh-seeds"] && generationsMax >= folds) {
    throw new Error("--generations must be below --folds");
  }
  const history = { generationsMax, responsesMax: Number(values.responses) };
  const rows: HistoryRow[] = [];
  for (const drafter of values.drafter.split(",") as DrafterKind[]) {
    for (const draftedPerStep of values["drafted-per-step"].split(",").map(Number)) {
      const shape = { drafter, draftedPerStep, folds, history, live: Number(values.live) };
      rows.push(...(await compare(policies, shape)));
    }
  }
  const last = policies.length - 1;
  console.log(`${basename(file)}: ${last} policies after the first, ${folds} folds`);
  console.log(tableOf(rows));
  writeReport(values.json, { results: rows });
}

if (import.meta.main) await main();
