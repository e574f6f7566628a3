// The rollouts that the server knows: those that run, and those that are over and can still be fetched. It
// bounds both, and finds out whether a request is a repetition of an earlier one.

import type { Clock } from "../../base/clock.ts";
import { AppError } from "../../base/errors.ts";
import type { WeightEpoch } from "../../base/ids.ts";
import type { Text } from "../../text/text.ts";
import type { Kept } from "../kept.ts";
import type { Sidecar } from "../sidecar.ts";
import type { RolloutLimits, RolloutPlan } from "./plan.ts";
import { Run } from "./run.ts";

interface Entry {
  readonly run: Run;
  /** Of the body that asked for it. */
  readonly hash: string;
  /** That it keeps in memory; 0 while it runs: the rollout holds those anyway. */
  keptBytes: number;
}

export interface KnownRolloutsOptions {
  readonly sidecar: Sidecar;
  readonly text: Text;
  readonly clock: Clock;
  /** What the trainer calls the weights of an epoch. */
  readonly versionOf: (epoch: WeightEpoch) => string;
  readonly limits: RolloutLimits;
  /** A name for a rollout whose client gave none. */
  readonly newId: () => string;
}

export class KnownRollouts {
  readonly #options: KnownRolloutsOptions;
  /** The one that began or ended longest ago comes first. */
  readonly #entries = new Map<string, Entry>();
  #keptBytes = 0;

  constructor(options: KnownRolloutsOptions) {
    this.#options = options;
    options.sidecar.observe({
      broken: (error) => {
        const problem = error instanceof Error ? error.message : String(error);
        for (const { run } of this.#entries.values()) run.fail(problem);
      },
    });
  }

  /** Of rollouts that are over. */
  get kept(): Kept {
    const { keptBytesMax: bytesMax } = this.#options.limits;
    const count = this.runs().filter(({ state }) => state !== "running").length;
    return { bytes: this.#keptBytes, bytesMax, count };
  }

  runs(): Run[] {
    return [...this.#entries.values()].map(({ run }) => run);
  }

  /** @throws AppError not_found. */
  run(id: string): Run {
    const entry = this.#entries.get(id);
    if (entry !== undefined) return entry.run;
    throw new AppError("not_found", `there is no rollout ${JSON.stringify(id)}, or not any more`);
  }

  /**
   * Begins a rollout, or finds the one that the same body began. The id of a cancelled one is free again.
   * @throws AppError conflict, queue_full, and as Sidecar.generate.
   */
  begin(plan: RolloutPlan, hash: string): { run: Run; isNew: boolean } {
    const id = plan.id ?? this.#options.newId();
    const there = this.#entries.get(id);
    if (there !== undefined && there.run.state !== "cancelled") {
      if (there.hash === hash) return { run: there.run, isNew: false };
      throw new AppError("conflict", `rollout ${JSON.stringify(id)} was begun with another body`);
    }
    this.#makeRoom();
    const { sidecar, text, clock, versionOf } = this.#options;
    const ended = () => this.#ended(id);
    const run = new Run({ id, plan, sidecar, text, clock, versionOf, ended });
    if (there !== undefined) this.#drop(id, there);
    this.#entries.set(id, { run, hash, keptBytes: 0 });
    return { run, isNew: true };
  }

  #makeRoom(): void {
    const { rolloutsMax } = this.#options.limits;
    if (this.#entries.size < rolloutsMax || this.#dropOldest()) return;
    throw new AppError("queue_full", `${rolloutsMax} rollouts are running, the server's maximum`);
  }

  #ended(id: string): void {
    const entry = this.#entries.get(id);
    if (entry === undefined) return;
    this.#entries.delete(id);
    this.#entries.set(id, entry);
    entry.keptBytes = entry.run.bytes;
    this.#keptBytes += entry.keptBytes;
    while (this.#keptBytes > this.#options.limits.keptBytesMax && this.#dropOldest()) {
      // One at a time, the oldest first.
    }
  }

  /** false: none is over. */
  #dropOldest(): boolean {
    for (const [id, entry] of this.#entries) {
      if (entry.run.state === "running") continue;
      this.#drop(id, entry);
      return true;
    }
    return false;
  }

  #drop(id: string, entry: Entry): void {
    this.#entries.delete(id);
    this.#keptBytes -= entry.keptBytes;
  }
}
