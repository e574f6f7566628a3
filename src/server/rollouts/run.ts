// One rollout of a client: its groups, the finished ones, and the readers that wait for more. It owns no connection;
// readers come and go, and read finished groups in the order in which they finished.

import type { Clock } from "../../core/base/clock.ts";
import type { WeightEpoch } from "../../core/base/ids.ts";
import type { RunJournal } from "../../core/journal/run-journal.ts";
import type { Request } from "../../core/request/buffer.ts";
import type { DrawKey } from "../../core/request/request.ts";
import { Ends } from "../../core/rollout/iteration-span.ts";
import { type RolloutReport, rolloutReport } from "../../core/rollout/report.ts";
import { firstComplete } from "../../core/rollout/selection.ts";
import type { Text } from "../../text/text.ts";
import { promptBytes, responseBytes } from "../kept.ts";
import type { Generation, Sidecar } from "../sidecar.ts";
import { type CarriedGroup, carriedGroup, isFresh } from "./carried.ts";
import { type GroupPlan, inGroup, type RolloutPlan } from "./plan.ts";
import { linesOf } from "./response-line.ts";

export type RolloutState = "running" | "finished" | "cancelled" | "failed";

export interface RunGroup {
  readonly id: string;
  readonly n: number;
  /** Number of responses with which it is whole. */
  readonly wanted: number;
  /** Requests of the group; empty after it was given up. */
  requests: readonly Request[];
  finished: number;
  /** Responses that are handed out; empty until it is whole. */
  taken: readonly Request[];
}

/** Parts that all rollouts of a server share. */
export interface RunParts {
  readonly sidecar: Sidecar;
  readonly text: Text;
  readonly clock: Clock;
  /** The trainer's name for the weights of an epoch. */
  readonly versionOf: (epoch: WeightEpoch) => string;
}

export interface RunOptions extends RunParts {
  readonly id: string;
  /** Digest of the request's body. */
  readonly hash: string;
  /** Plan of the rollout. It is not kept, because the requests hold the prompts. */
  readonly plan: RolloutPlan;
  /** Called at the end of the rollout; nothing follows. */
  readonly ended: (run: Run) => void;
  /** null: none is kept. */
  readonly journal: RunJournal | null;
  /** Random numbers that an earlier process chose, by group. */
  readonly draws: readonly (readonly DrawKey[])[];
  /** Groups of an earlier rollout, which the plan begins with. */
  readonly carried: readonly CarriedGroup[];
}

export class Run {
  readonly id: string;
  readonly hash: string;
  readonly journal: RunJournal | null;
  readonly isDetached: boolean;
  /** Memory of its prompts and responses; 0 during the run: the rollout holds them anyway. */
  bytes = 0;
  readonly groups: RunGroup[] = [];
  /** Finished groups in the order in which they finished. */
  readonly finishedGroups: RunGroup[] = [];
  readonly startMs: number;
  readonly requests: number;
  /** Groups that were not whole at its end, for a rollout that goes on with them. */
  carried: readonly CarriedGroup[] = [];
  readonly #options: Omit<RunOptions, "plan" | "draws" | "carried">;
  readonly #finishGroups: number;
  /** Plans of the groups; none unless they may be carried on. */
  #plans: readonly GroupPlan[] = [];
  /** While it runs. */
  #generations: Generation[] = [];
  readonly #ends = new Ends();
  #restarts = 0;
  #state: RolloutState = "running";
  #problem: string | null = null;
  #report: RolloutReport | null = null;
  /** Called when another group has finished, or the run is over. */
  readonly #readers = new Set<() => void>();

  /** Begins every response, or none. @throws AppError as Sidecar.generate. */
  constructor(options: RunOptions) {
    const { plan, draws, carried, ...rest } = options;
    this.id = options.id;
    this.hash = options.hash;
    this.journal = options.journal;
    this.isDetached = plan.isDetached;
    this.requests = plan.requests;
    this.startMs = options.clock.nowMs();
    this.#options = rest;
    this.#finishGroups = Math.min(plan.finishGroups ?? plan.groups.length, plan.groups.length);
    if (this.#finishGroups < plan.groups.length) this.#plans = plan.groups;
    for (const [i, group] of plan.groups.entries()) {
      try {
        this.#begin(group, plan, draws[i]);
      } catch (error) {
        this.#state = "failed";
        for (const generation of this.#generations) generation.abort();
        throw inGroup(error, group.id);
      }
    }
    const { rollout } = options.sidecar;
    options.journal?.follow(rollout, [...this.#requests()]);
    for (const [i, { outputs }] of carried.entries()) {
      for (const [index, output] of outputs.entries()) {
        const request = this.groups[i]?.requests[index];
        if (request === undefined || !isFresh(output, rollout.epoch, plan)) continue;
        if (rollout.restore(request, output)) options.journal?.changed(request);
      }
    }
  }

  get state(): RolloutState {
    return this.#state;
  }

  get outputTokens(): number {
    let tokens = 0;
    for (const request of this.#requests()) tokens += request.response.length;
    return tokens;
  }

  get finishedRequests(): number {
    return this.#ends.count;
  }

  get elapsedS(): number {
    return (this.#options.clock.nowMs() - this.startMs) / 1000;
  }

  /** Why it failed; null: it has not. */
  get problem(): string | null {
    return this.#problem;
  }

  /** null: it is not over. */
  get report(): RolloutReport | null {
    return this.#report;
  }

  /**
   * Registers a reader, to be called when another group has finished, or the run is over; returns a function that removes
   * it. Without readers the run is cancelled, unless detached.
   */
  attach(news: () => void): () => void {
    this.#readers.add(news);
    return () => {
      const hasLeft = this.#readers.delete(news);
      if (hasLeft && this.#readers.size === 0 && !this.isDetached) this.cancel();
    };
  }

  cancel(): void {
    this.#end("cancelled");
  }

  /** The rollout engine has stopped for good, or every response was given up. */
  fail(problem: string): void {
    this.#problem = problem;
    this.#end("failed");
  }

  /** The lines of a finished group, each with its line end. */
  linesOf({ id, taken }: RunGroup): string {
    const { text, versionOf } = this.#options;
    return linesOf(id, taken, { text, versionOf, skipSpecial: true });
  }

  summaryLine(): string {
    const error = this.#problem === null ? {} : { error: { message: this.#problem } };
    const summary = { rollout: this.id, state: this.#state, ...error, report: this.#report };
    return `${JSON.stringify(summary)}\n`;
  }

  #begin(plan: GroupPlan, rollout: RolloutPlan, draws: readonly DrawKey[] | undefined): void {
    const { journal, id } = this;
    const { sidecar } = this.#options;
    const { prompt, n, sampling, seeded } = plan;
    const group: { current: RunGroup | null } = { current: null };
    const generation = sidecar.generate(
      {
        ...{ prompt, n, sampling, seeded },
        group: `${id}/${plan.id}`,
        priority: rollout.priority,
        deadline: rollout.deadline ?? null,
        isStrict: rollout.isStrict,
        stalenessMax: rollout.stalenessMax ?? 0,
        drawGroup: plan.id,
        ...(draws === undefined ? {} : { draws }),
      },
      {
        tokens: (request) => journal?.changed(request),
        finished: (request) => {
          if (group.current !== null) this.#finished(group.current, request);
        },
        restarted: (request) => {
          this.#restarts += 1;
          journal?.changed(request);
        },
      },
    );
    this.#generations.push(generation);
    // Groups are named after their rollout: no other request joins them, and a complete one leaves the engines at once.
    generation.release();
    const wanted = plan.finishFirst ?? n;
    const { requests } = generation;
    group.current = { id: plan.id, n, wanted, requests, finished: 0, taken: [] };
    this.groups.push(group.current);
  }

  #finished(group: RunGroup, request: Request): void {
    if (this.#state !== "running") return;
    this.#ends.add(this.#options.clock.nowMs());
    group.finished += 1;
    const { journal } = this;
    journal?.finished(request);
    if (group.taken.length > 0) return;
    const { requests, wanted, n, finished } = group;
    const first = wanted < n ? firstComplete(requests, wanted) : [];
    if (first.length < wanted && finished < n) return;
    group.taken = first.length < wanted ? requests : first;
    // Not inside the turn in which this one has finished.
    if (finished < n) queueMicrotask(() => this.#generations[this.groups.indexOf(group)]?.abort());
    // A group that was handed out is never generated again, whatever becomes of this process.
    if (journal !== null) void journal.settled().then(() => this.#complete(group));
    else this.#complete(group);
  }

  #complete(group: RunGroup): void {
    if (this.#state !== "running") return;
    this.finishedGroups.push(group);
    const taken = this.finishedGroups.flatMap((one) => one.taken);
    if (this.finishedGroups.length < this.#finishGroups) this.#wake();
    else if (!taken.every(isGivenUp)) this.#end("finished");
    else {
      const reason = taken[0]?.response.refusal?.message ?? "they were aborted";
      this.fail(`all its responses were given up, the first because ${reason}`);
    }
  }

  #end(state: RolloutState): void {
    if (this.#state !== "running") return;
    this.#state = state;
    const generations = this.#generations;
    this.#generations = [];
    const whole = new Set(this.finishedGroups);
    if (state === "finished") {
      this.carried = this.#plans.flatMap((plan, i) => {
        const group = this.groups[i];
        return group === undefined || whole.has(group) ? [] : [carriedGroup(plan, group.requests)];
      });
    } else {
      for (const generation of generations) generation.abort();
    }
    // Deferred: other listeners have not had the last event yet.
    queueMicrotask(() => {
      for (const generation of generations) generation.abort();
      this.#options.sidecar.rolloutOver();
    });
    const endMs = this.#options.clock.nowMs();
    const { groups, finishedGroups, startMs } = this;
    this.#report = rolloutReport({
      ...{ groups, finishedGroups, startMs, endMs },
      ends: this.#ends,
      restarts: this.#restarts,
      carriedGroups: this.carried.length,
      isWhole: state === "finished",
    });
    // Of unfinished requests only the number of tokens can be queried.
    for (const group of this.groups) if (!whole.has(group)) group.requests = [];
    this.#plans = [];
    for (const { outputs } of this.carried) {
      for (const { tokens, logprobs } of outputs)
        this.bytes += tokens.byteLength + logprobs.byteLength;
    }
    for (const { requests } of this.groups) {
      const [first] = requests;
      if (first !== undefined) this.bytes += promptBytes(first.spec.prompt);
      for (const request of requests) this.bytes += responseBytes(request);
    }
    this.#wake();
    this.#options.ended(this);
  }

  #wake(): void {
    for (const news of [...this.#readers]) news();
  }

  *#requests(): Iterable<Request> {
    for (const { requests } of this.groups) yield* requests;
  }
}

/** Whether nothing of the response is of use. */
function isGivenUp({ response: { finish, refusal, length } }: Request): boolean {
  return finish === "abort" && (refusal !== null || length === 0);
}
