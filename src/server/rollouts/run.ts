// One rollout of a client: its groups, the finished ones, and the readers that wait for more. It owns no connection;
// readers come and go, and read finished groups in the order in which they finished.

import { present } from "../../core/base/assert.ts";
import type { Clock } from "../../core/base/clock.ts";
import { AppError } from "../../core/base/errors.ts";
import type { WeightEpoch } from "../../core/base/ids.ts";
import type { RunJournal } from "../../core/journal/run-journal.ts";
import type { RolloutRequest } from "../../core/request/buffer.ts";
import { type DrawKey, drawKey } from "../../core/request/request.ts";
import type { SavedOutput } from "../../core/request/response.ts";
import { Ends } from "../../core/rollout/iteration-span.ts";
import { type RolloutReport, rolloutReport } from "../../core/rollout/report.ts";
import { firstComplete, isStale } from "../../core/rollout/selection.ts";
import type { Text } from "../../text/text.ts";
import { promptBytes, responseBytes } from "../kept.ts";
import type { Generation, Sidecar } from "../sidecar.ts";
import {
  type AddedGroup,
  type CarriedGroup,
  type GroupPlan,
  inGroup,
  type RolloutPlan,
  type Steered,
} from "./plan.ts";
import { linesOf } from "./response-line.ts";

export type RolloutState = "running" | "finished" | "cancelled" | "failed";

export interface RunGroup {
  readonly id: string;
  /** The group's plan; null: nothing can be added to the group any more. */
  plan: GroupPlan | null;
  /** Index of its first response among those of all groups with this id. */
  readonly base: number;
  isGivenUp: boolean;
  readonly n: number;
  /** Number of responses that make it whole. */
  readonly wanted: number;
  /** Requests of the group; empty at the end of the rollout if it was not whole by then. */
  requests: readonly RolloutRequest[];
  /** null: the rollout is over. */
  generation: Generation | null;
  finished: number;
  /** Responses that readers get; empty until the group is whole. */
  taken: readonly RolloutRequest[];
}

export interface RunParts {
  readonly sidecar: Sidecar;
  readonly text: Text;
  readonly clock: Clock;
  readonly versionOf: (epoch: WeightEpoch) => string;
}

export interface RunOptions extends RunParts {
  readonly id: string;
  readonly hash: string;
  /** Plan of the rollout. It is not kept, because the requests hold the prompts. */
  readonly plan: RolloutPlan;
  /** Called at the end of the rollout; nothing follows. */
  readonly ended: (run: RolloutRun) => void;
  /** The rollout's journal; null: none is kept. */
  readonly journal: RunJournal | null;
  /** Random numbers that an earlier process chose, by group. */
  readonly draws: readonly (readonly DrawKey[])[];
  /** Groups of an earlier rollout, which the plan begins with. */
  readonly carried: readonly CarriedGroup[];
  /** Changes by its client in an earlier process. */
  readonly changes: readonly RunChange[];
}

/** A group that begins. `draws`: its random numbers, where an earlier process or rollout chose them. */
type BegunGroup = AddedGroup & { readonly draws?: readonly DrawKey[] | undefined };

/** A change of a rollout by its client, as a journal keeps it. */
export type RunChange =
  | (AddedGroup & { readonly kind: "added"; readonly draws: readonly DrawKey[] })
  | { readonly kind: "given_up"; readonly group: string; readonly bases: readonly number[] }
  | { readonly kind: "closed" };

export class RolloutRun implements Steered {
  readonly id: string;
  readonly hash: string;
  readonly journal: RunJournal | null;
  readonly isDetached: boolean;
  /** Memory of its prompts and responses; 0 during the run: the rollout holds them anyway. */
  bytes = 0;
  readonly groups: RunGroup[] = [];
  readonly #parts = new Map<string, RunGroup[]>();
  readonly finishedGroups: RunGroup[] = [];
  readonly startMs: number;
  requests = 0;
  /** Groups that were not whole at its end, for a rollout that goes on with them. */
  carried: readonly CarriedGroup[] = [];
  readonly #options: Omit<RunOptions, "plan" | "draws" | "carried" | "changes">;
  readonly #how: Omit<RolloutPlan, "groups">;
  readonly #planned: number;
  #isOpen: boolean;
  #givenUp = 0;
  readonly #ends = new Ends();
  #restarts = 0;
  #state: RolloutState = "running";
  #problem: string | null = null;
  #report: RolloutReport | null = null;
  readonly #readers = new Set<() => void>();

  /** Begins every response, or none. @throws AppError as Sidecar.generate. */
  constructor(options: RunOptions) {
    const { plan, draws, carried, changes, ...rest } = options;
    const { groups, ...how } = plan;
    this.id = options.id;
    this.hash = options.hash;
    this.journal = options.journal;
    this.isDetached = plan.isDetached;
    this.startMs = options.clock.nowMs();
    this.#options = rest;
    this.#how = how;
    this.#planned = groups.length;
    this.#isOpen = plan.isOpen ?? false;
    const added = changes.filter((change) => change.kind === "added");
    const planned = groups.map((group, i) => ({ plan: group, base: 0, draws: draws[i] }));
    this.#begin([...planned, ...added]);
    for (const change of changes) {
      if (change.kind === "closed") this.#isOpen = false;
      if (change.kind !== "given_up") continue;
      this.#giveUp(this.#partsOf(change.group).filter(({ base }) => change.bases.includes(base)));
    }
    const { rollout } = options.sidecar;
    options.journal?.resume(rollout, [...this.#requests()]);
    for (const [i, { outputs }] of carried.entries()) {
      for (const [index, output] of outputs.entries()) {
        const request = this.groups[i]?.requests[index];
        if (request === undefined || !isFresh(output, rollout.epoch, plan)) continue;
        if (rollout.restore(request, output)) options.journal?.changed(request);
      }
    }
    this.#abort(this.groups.filter(({ isGivenUp }) => isGivenUp));
    // Where all were given up, no response that finishes ends it.
    this.#endIfWhole();
  }

  get adapter(): string | null {
    return this.groups[0]?.plan?.sampling.adapter ?? null;
  }

  groupOf(id: string): { readonly plan: GroupPlan; readonly size: number } | null {
    const parts = this.#partsOf(id);
    const plan = parts[0]?.plan ?? null;
    return plan === null ? null : { plan, size: sizeOf(parts) };
  }

  /** Begins more groups, or responses to one, or none. `isOpen` false: the last. @throws AppError conflict; as generate. */
  add(added: readonly AddedGroup[], isOpen: boolean | null): void {
    this.checkRunning();
    for (const { plan, base } of added) {
      const size = this.groupOf(plan.id)?.size ?? 0;
      if (size === base) continue;
      // Another request has added to it since this one was checked.
      const message = `group ${JSON.stringify(plan.id)} has ${size} responses, not ${base}`;
      throw new AppError("conflict", message);
    }
    const { journal } = this;
    let stream = this.requests;
    for (const { plan, base, requests } of this.#begin(added)) {
      const draws = requests.map(({ spec }) => spec.draw);
      journal?.change({ kind: "added", plan: present(plan, "it begins"), base, draws });
      for (const request of requests) {
        journal?.follow(request, stream);
        stream += 1;
      }
    }
    if (isOpen !== false || !this.#isOpen) return;
    journal?.change({ kind: "closed" } satisfies RunChange);
    this.#isOpen = false;
    this.#endIfWhole();
  }

  /** Gives up what of a group is not handed out; returns its responses. @throws AppError not_found, conflict. */
  giveUp(id: string): number {
    this.checkRunning();
    const parts = this.#partsOf(id);
    if (parts.length === 0) {
      throw new AppError("not_found", `the rollout has no group ${JSON.stringify(id)}`);
    }
    const unfinished = parts.filter((group) => !group.isGivenUp && group.taken.length === 0);
    const bases = unfinished.map(({ base }) => base);
    this.journal?.change({ kind: "given_up", group: id, bases } satisfies RunChange);
    this.#giveUp(unfinished);
    this.#abort(unfinished);
    this.#endIfWhole();
    return sizeOf(unfinished);
  }

  #abort(groups: readonly RunGroup[]): void {
    for (const { generation } of groups) generation?.abort();
  }

  #partsOf(id: string): readonly RunGroup[] {
    return this.#parts.get(id) ?? [];
  }

  /** Marks groups as given up; the caller ends their responses. */
  #giveUp(groups: readonly RunGroup[]): void {
    for (const group of groups) group.isGivenUp = true;
    this.#givenUp += groups.length;
  }

  /** Throws AppError conflict if the rollout is over. */
  checkRunning(): void {
    if (this.#state === "running") return;
    const message = `rollout ${JSON.stringify(this.id)} is ${this.#state}: nothing of it can be changed`;
    throw new AppError("conflict", message);
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

  /** Why the rollout failed; null: it did not. */
  get problem(): string | null {
    return this.#problem;
  }

  /** Figures of the rollout; null: it is not over. */
  get report(): RolloutReport | null {
    return this.#report;
  }

  /** Adds a reader of news; returns a function that removes it. Without readers the run is cancelled, unless detached. */
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

  /** Ends the rollout as failed: the server's loop has stopped for good, or every response was given up. */
  fail(problem: string): void {
    this.#problem = problem;
    this.#end("failed");
  }

  /** The lines of a finished group, each with its line end. */
  linesOf({ id, base, taken }: RunGroup): string {
    const { text, versionOf } = this.#options;
    return linesOf(id, taken, { text, versionOf, skipSpecial: true, base });
  }

  summaryLine(): string {
    const error = this.#problem === null ? {} : { error: { message: this.#problem } };
    const summary = { rollout: this.id, state: this.#state, ...error, report: this.#report };
    return `${JSON.stringify(summary)}\n`;
  }

  /** Begins all of the groups, or none of them. @throws AppError as Sidecar.generate, naming the group. */
  #begin(added: readonly BegunGroup[]): readonly RunGroup[] {
    const begun: RunGroup[] = [];
    for (const one of added) {
      try {
        begun.push(this.#generate(one));
      } catch (error) {
        for (const group of begun) group.plan = null;
        this.#abort(begun);
        throw inGroup(error, one.plan.id);
      }
    }
    for (const group of begun) {
      this.groups.push(group);
      this.#parts.getOrInsertComputed(group.id, () => []).push(group);
    }
    this.requests += sizeOf(begun);
    return begun;
  }

  #generate({ plan, base, draws }: BegunGroup): RunGroup {
    const { journal } = this;
    const { priority, isStrict, stalenessMax } = this.#how;
    const { id, prompt, n, sampling, seeded } = plan;
    const drawOf = (index: number) => drawKey(sampling.seed, id, base + index);
    const named = seeded ? Array.from({ length: n }, (_, i) => drawOf(i)) : undefined;
    const group: RunGroup = {
      id,
      plan,
      base,
      n,
      wanted: plan.finishFirst ?? n,
      isGivenUp: false,
      requests: [],
      generation: null,
      finished: 0,
      taken: [],
    };
    const generation = this.#options.sidecar.generate(
      {
        prompt,
        n,
        sampling,
        seeded,
        group: `${this.id}/${id}`,
        priority,
        isStrict,
        stalenessMax: stalenessMax ?? 0,
        draws: draws ?? named ?? [],
      },
      {
        tokens: (request) => journal?.changed(request),
        finished: (request) => this.#finished(group, request),
        restarted: (request) => {
          this.#restarts += 1;
          journal?.changed(request);
        },
      },
    );
    // Groups are named after their rollout: no other request joins them, and a complete one leaves the engines at once.
    generation.release();
    group.generation = generation;
    group.requests = generation.requests;
    return group;
  }

  #finished(group: RunGroup, request: RolloutRequest): void {
    // Without a plan, its beginning was taken back.
    if (this.#state !== "running" || group.plan === null) return;
    this.#ends.add(this.#options.clock.nowMs());
    group.finished += 1;
    const { journal } = this;
    journal?.finished(request);
    if (group.taken.length > 0 || group.isGivenUp) return;
    const { requests, wanted, n, finished } = group;
    const first = wanted < n ? firstComplete(requests, wanted) : [];
    if (first.length < wanted && finished < n) return;
    group.taken = first.length < wanted ? requests : first;
    // Not inside the turn in which this one has finished.
    if (finished < n) queueMicrotask(() => this.#abort([group]));
    // A group that was handed out is never generated again, whatever becomes of this process.
    if (journal !== null) void journal.settled().then(() => this.#complete(group));
    else this.#complete(group);
  }

  #complete(group: RunGroup): void {
    if (this.#state !== "running") return;
    this.finishedGroups.push(group);
    if (!this.#endIfWhole()) this.#wake();
  }

  /** Ends the rollout if enough groups are whole; returns whether it did. */
  #endIfWhole(): boolean {
    const { finishGroups = null } = this.#how;
    const left = this.groups.length - this.#givenUp;
    const wanted = Math.min(finishGroups ?? left, left);
    if (this.#isOpen || this.finishedGroups.length < wanted) return false;
    const taken = this.finishedGroups.flatMap((one) => one.taken);
    // Aborted and of no use: refused, or without tokens.
    const isUseless = ({ response: { finish, refusal, length } }: RolloutRequest) =>
      finish === "abort" && (refusal !== null || length === 0);
    if (taken.length === 0 || !taken.every(isUseless)) this.#end("finished");
    else {
      const reason = taken[0]?.response.refusal?.message ?? "they were aborted";
      this.fail(`all its responses were given up, the first because ${reason}`);
    }
    return true;
  }

  #end(state: RolloutState): void {
    if (this.#state !== "running") return;
    this.#state = state;
    const whole = new Set(this.finishedGroups);
    if (state === "finished") {
      this.carried = this.groups.flatMap((group) => {
        const { plan, base, requests, isGivenUp } = group;
        const isLeft = plan !== null && base === 0 && !isGivenUp && !whole.has(group);
        return isLeft ? [carriedGroup(plan, requests)] : [];
      });
    } else this.#abort(this.groups);
    // Deferred: other listeners have not had the last event yet.
    queueMicrotask(() => {
      this.#abort(this.groups);
      for (const group of this.groups) group.generation = null;
      this.#options.sidecar.rolloutOver();
    });
    const added = this.groups.slice(this.#planned);
    this.#report = rolloutReport({
      groups: this.groups,
      finishedGroups: this.finishedGroups,
      startMs: this.startMs,
      endMs: this.#options.clock.nowMs(),
      ends: this.#ends,
      restarts: this.#restarts,
      carriedGroups: this.carried.length,
      changed: {
        added_groups: added.length,
        added_requests: sizeOf(added),
        given_up_groups: this.#givenUp,
      },
      isWhole: state === "finished",
    });
    // Of unfinished requests only the number of tokens can be queried.
    for (const group of this.groups) {
      group.plan = null;
      if (!whole.has(group)) group.requests = [];
    }
    for (const { tokens, logprobs } of this.carried.flatMap(({ outputs }) => outputs)) {
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

  *#requests(): Iterable<RolloutRequest> {
    for (const { requests } of this.groups) yield* requests;
  }
}

function sizeOf(groups: readonly RunGroup[]): number {
  return groups.reduce((sum, { n }) => sum + n, 0);
}

/** A group as it is carried on. `requests`: all of its requests, before running ones are given up. */
function carriedGroup(plan: GroupPlan, requests: readonly RolloutRequest[]): CarriedGroup {
  const outputs = requests.map(({ response }) => ({
    tokens: response.tokens(),
    logprobs: response.logprobs(),
    top: null,
    chunks: response.chunks.map(({ run: _run, ...chunk }) => chunk),
    // A response that was given up goes on as well.
    finish: response.finish === "abort" ? null : response.finish,
    refusal: null,
  }));
  return { plan, draws: requests.map(({ spec }) => spec.draw), outputs };
}

/** Whether the response continues from `output`; if its tokens are too old it begins anew, finished or not. */
function isFresh(
  { chunks, tokens }: SavedOutput,
  epoch: WeightEpoch,
  { isStrict, stalenessMax }: RolloutPlan,
): boolean {
  const wanted = { isStrict, stalenessMax: stalenessMax ?? 0 };
  return tokens.length > 0 && !isStale(wanted, chunks, epoch);
}
