// The rollouts that the server knows: those that run, and those that are over and can still be fetched. It
// bounds both, and finds out whether a request is a repetition of an earlier one.

import { AppError, errorText } from "../../core/base/errors.ts";
import type { WeightEpoch, WeightsId } from "../../core/base/ids.ts";
import type { HeldWeights } from "../../core/journal/held-weights.ts";
import type { SavedRun } from "../../core/journal/read.ts";
import { isCount } from "../../core/journal/records.ts";
import { checkFormat, type RunFiles, RunJournal } from "../../core/journal/run-journal.ts";
import type { DrawKey } from "../../core/request/request.ts";
import type { Kept } from "../kept.ts";
import { Repeats } from "../repeats.ts";
import { type CarriedGroup, type RolloutLimits, type RolloutPlan, withCarried } from "./plan.ts";
import { RolloutRun, type RunChange, type RunParts } from "./run.ts";

interface Header extends HeldWeights {
  readonly format: 1;
  readonly id: string;
  readonly hash: string;
  readonly plan: RolloutPlan;
  readonly draws: readonly (readonly DrawKey[])[];
}

/** A rollout of an earlier process. */
export interface SavedRollout extends Header {
  readonly run: SavedRun;
}

/** The rollout that a journal holds. @throws AppError invalid_config: it is the journal of something else. */
export function savedRollout(run: SavedRun): SavedRollout {
  checkFormat(run);
  if (!isHeader(run.header)) {
    const problem = "is no journal of a rollout, or one of an earlier release; use another folder";
    throw new AppError("invalid_config", `--journal: ${run.name} ${problem}`);
  }
  const { header } = run;
  const groups = header.plan.groups.map((group) => ({
    ...group,
    prompt: Int32Array.from(group.prompt),
  }));
  return { ...header, plan: { ...header.plan, groups }, run };
}

/** Checks the fields that the start of a server depends on; the rest was checked when the journal began. */
function isHeader(header: object): header is Header {
  const { format, id, hash, plan, draws, epoch, version } = header as Partial<Header>;
  const texts = [id, hash, version].every((text) => typeof text === "string");
  const { groups } = Object(plan) as Partial<RolloutPlan>;
  const hasPrompts =
    Array.isArray(groups) && groups.every((group) => Array.isArray(Object(group).prompt));
  return format === 1 && texts && isCount(epoch) && Array.isArray(draws) && hasPrompts;
}

export interface KnownRolloutsOptions extends RunParts {
  readonly limits: RolloutLimits;
  /** Files of the journals; null: none are kept. */
  readonly files: RunFiles | null;
  /** The weights in service, for journals, without epoch and version. */
  readonly held: () => Pick<HeldWeights, "weights" | "base">;
}

export class KnownRollouts {
  readonly #options: KnownRolloutsOptions;
  readonly #runs: Repeats<RolloutRun>;
  /** Rollouts of an earlier process that have not begun again. */
  #saved: SavedRollout[] = [];
  /** The process ends: from now on no journal is deleted. */
  #isClosed = false;

  constructor(options: KnownRolloutsOptions) {
    this.#options = options;
    this.#runs = new Repeats({
      bytesMax: options.limits.keptBytesMax,
      isFree: ({ state }) => state === "cancelled",
      // A cancelled one has none any more.
      dropped: ({ journal, state }) => {
        if (!this.#isClosed && state !== "cancelled") void journal?.remove();
      },
    });
    options.sidecar.observe({
      advanced: (epoch) => this.#advanced(epoch),
      broken: (error) => {
        for (const run of this.#runs.values()) run.fail(errorText(error));
      },
    });
  }

  get kept(): Kept {
    return this.#runs.kept;
  }

  runs(): RolloutRun[] {
    this.#checkResumed();
    return this.#runs.values();
  }

  /** The rollout with this id. @throws AppError not_found; no_worker: it may be a saved one that has not begun again. */
  run(id: string): RolloutRun {
    this.#checkResumed();
    const run = this.#runs.get(id);
    if (run !== null) return run;
    throw new AppError("not_found", `there is no rollout ${JSON.stringify(id)}, or not any more`);
  }

  /** Begins a rollout, or finds the one of the same body. @throws AppError conflict, queue_full; as Sidecar.generate. */
  begin(plan: RolloutPlan, hash: string): RolloutRun {
    this.#checkResumed();
    const id = plan.id ?? `rollout-${crypto.randomUUID()}`;
    const problem = () => `rollout ${JSON.stringify(id)} was begun with another body`;
    const existing = this.#runs.find(id, hash, problem);
    if (existing !== null) return existing;
    const from = plan.carryFrom == null ? null : this.run(plan.carryFrom);
    if (from !== null && from.state !== "finished") {
      const problem = `is ${from.state}: carry_from names one that is finished`;
      throw new AppError("conflict", `rollout ${JSON.stringify(from.id)} ${problem}`);
    }
    const { rolloutsMax } = this.#options.limits;
    if (this.#runs.inUse >= rolloutsMax) {
      const problem = `${rolloutsMax} rollouts are running, the server's maximum`;
      throw new AppError("queue_full", problem);
    }
    const carried = from?.carried ?? [];
    const run = this.#start(id, withCarried(plan, carried), hash, null, carried);
    if (from !== null) from.carried = [];
    // Not before it has begun: a request that is refused costs no earlier rollout, and this one may go on with the oldest.
    this.#runs.trim(rolloutsMax - this.#runs.inUse);
    return run;
  }

  /** Takes over rollouts of an earlier process, which begin again with `resume`. */
  takeOver(saved: Iterable<SavedRollout>): void {
    this.#saved.push(...saved);
  }

  /** Rollouts of an earlier process that have not begun again. */
  get saved(): readonly SavedRollout[] {
    return this.#saved;
  }

  /** Rollouts of an earlier process go on. `weights`: the engines' own. `failed`: one cannot go on; its journal stays. */
  resume(weights: readonly WeightsId[], failed: (error: unknown) => void): void {
    const saved = this.#saved;
    this.#saved = [];
    for (const rollout of saved) {
      try {
        const run = this.#start(rollout.id, rollout.plan, rollout.hash, rollout);
        const { last, finished } = rollout.run;
        // What has finished is as it was; other weights of a later epoch are what the trainer wanted.
        const isOver = finished.length === run.requests;
        const isLater = last !== null && last.epoch < this.#options.sidecar.rollout.epoch;
        const before = isOver || isLater ? null : (last?.weights ?? null);
        const other = before === null ? undefined : weights.find((one) => one !== before);
        if (other === undefined) continue;
        const problem = `its tokens are of the weights ${before}, and an engine has ${other} after the restart`;
        run.fail(problem);
        throw new AppError("conflict", problem);
      } catch (error) {
        const problem = `rollout ${JSON.stringify(rollout.id)} of the journal: ${errorText(error)}`;
        failed(new Error(problem, { cause: error }));
      }
    }
  }

  /** Closes the journals at the end of the process; the next process continues unfinished rollouts. */
  async close(): Promise<void> {
    this.#isClosed = true;
    await Promise.all(this.#runs.values().map(({ journal }) => journal?.close()));
  }

  /** Saves the new weights, with which the next process begins, even if no rollout runs at the moment. */
  #advanced(epoch: WeightEpoch): void {
    const { held, versionOf } = this.#options;
    const runs = this.#runs.values();
    const running = runs.filter(({ state }) => state === "running");
    const weights = { epoch, version: versionOf(epoch), ...held() };
    for (const { journal } of running.length > 0 ? running : runs.slice(-1)) {
      journal?.advanced(weights);
    }
  }

  #start(
    id: string,
    plan: RolloutPlan,
    hash: string,
    saved: SavedRollout | null = null,
    carried: readonly CarriedGroup[] = [],
  ): RolloutRun {
    const { sidecar, versionOf, files, held } = this.#options;
    const journal = files ? new RunJournal(files, saved?.run ?? null) : null;
    const draws = saved?.draws ?? carried.map((group) => group.draws);
    const changes = (saved?.run.changes ?? []).map(changeOf);
    const own = { id, hash, plan, journal, draws, carried, changes };
    const ended = (one: RolloutRun) => this.#ended(one);
    let run: RolloutRun;
    try {
      run = new RolloutRun({ ...this.#options, ...own, ended });
    } catch (error) {
      void (saved === null ? journal?.remove() : journal?.close());
      throw error;
    }
    if (saved === null) {
      const draws = run.groups.map(({ requests }) => requests.map(({ spec }) => spec.draw));
      const { epoch } = sidecar.rollout;
      journal?.describe({ id, hash, plan, draws, epoch, version: versionOf(epoch), ...held() });
    }
    this.#runs.add(id, hash, run);
    if (run.state !== "running") this.#ended(run);
    return run;
  }

  #checkResumed(): void {
    if (this.#saved.length === 0) return;
    const message = "rollouts of the journal go on when the engines serve: try again";
    throw new AppError("no_worker", message);
  }

  #ended(run: RolloutRun): void {
    const countMax = this.#options.limits.rolloutsMax - this.#runs.inUse + 1;
    if (!this.#runs.rest(run.id, run, run.bytes, countMax)) return;
    if (run.state === "cancelled" && !this.#isClosed) void run.journal?.remove();
  }
}

/** The frame's CRC vouches for its content. Prompts are lists in JSON. */
function changeOf(saved: unknown): RunChange {
  const change = saved as RunChange;
  if (change.kind !== "added") return change;
  const prompt = Int32Array.from(change.plan.prompt);
  return { ...change, plan: { ...change.plan, prompt } };
}
