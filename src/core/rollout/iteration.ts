// One rollout iteration over workers of its own: every group submitted at the start, a report at the end.

import { assert } from "../base/assert.ts";
import { AppError, InvalidFieldError } from "../base/errors.ts";
import type { GroupId } from "../base/ids.ts";
import type { Group, GroupSpec, Request } from "../request/buffer.ts";
import type { SavedOutput } from "../request/saved-output.ts";
import type { RunReport } from "./report.ts";
import { Rollout, type RolloutOptions } from "./rollout.ts";
import { endRest } from "./selection.ts";
import type { Worker } from "./worker.ts";

export interface IterationOptions extends Omit<RolloutOptions, "listener"> {
  readonly groups: readonly GroupSpec[];
  /** Fresh workers, all with the weights of `epoch`; the iteration listens to them but does not close them. */
  readonly workers: readonly Worker[];
  readonly deterministic: boolean;
  /**
   * Called once for each group, as it finishes; after `interrupt` also for groups of which only some requests have
   * finished. An error that it throws ends the iteration.
   */
  readonly onGroup: (group: Group) => void;
  /** A request has been ended because workers died of it. */
  readonly onFailed: (request: Request) => void;
  /** Default: none. */
  readonly journal?: IterationJournal | null;
}

/** Keeps generated tokens, so that another process can continue from them. */
export interface IterationJournal {
  /**
   * Called before the first response begins. @throws AppError: the saved responses are of other weights than these
   * workers'.
   */
  check(workers: readonly Worker[]): void;
  /** Tokens that an earlier process generated of the response; null: nothing. */
  saved(request: Request): SavedOutput | null;
  /** The response begins with `saved`. */
  began(request: Request, saved: SavedOutput | null): void;
  /** The response has new tokens, or restarts. */
  changed(request: Request): void;
  finished(request: Request): void;
}

export class Iteration {
  readonly rollout: Rollout;
  readonly #options: IterationOptions;
  readonly #done = Promise.withResolvers<RunReport>();
  /** Groups that have not been handed out. */
  readonly #open = new Set<Group>();
  /** Groups that are whole with some of their responses. */
  readonly #wanted = new Map<GroupId, number>();
  #isOver = false;

  constructor(options: IterationOptions) {
    assert(options.workers.length > 0, "an iteration has at least one worker");
    assert(options.groups.length > 0, "an iteration has at least one group");
    this.#options = options;
    this.rollout = new Rollout({
      ...options,
      listener: {
        tokens: (request) => options.journal?.changed(request),
        finished: (request) => this.#finished(request),
        restarted: (request) => options.journal?.changed(request),
        stats() {},
        groupFinished: (group) => this.#groupFinished(group),
        workerFailed: (worker, message) => this.#workerFailed(worker, message),
        quarantined: (request) => this.#options.onFailed(request),
        threw: (error) => this.#reject(error),
        broken: (error) => this.#reject(error),
      },
    });
  }

  /** Resolves when every request has finished, or after `interrupt`. Call once. @throws AppError invalid_field: a worker refuses the sampling; as IterationJournal.check. */
  run(): Promise<RunReport> {
    this.#options.journal?.check(this.#options.workers);
    for (const group of this.#options.groups) {
      const { groupId, size, finishFirst = size } = group;
      if (finishFirst < size) this.#wanted.set(groupId, finishFirst);
      this.#open.add(this.rollout.submit({ ...group, divisible: this.#isDivisible(group) }));
    }
    for (const worker of this.#options.workers) this.rollout.addWorker(worker);
    for (const { requests } of [...this.#open]) for (const one of requests) this.#resume(one);
    return this.#done.promise;
  }

  #resume(request: Request): void {
    const { journal } = this.#options;
    if (!journal) return;
    const saved = journal.saved(request);
    const isResumed = saved !== null && this.rollout.restore(request, saved);
    journal.began(request, isResumed ? saved : null);
  }

  /** Ends the run at once: finished requests are handed out, the rest is dropped. */
  interrupt(): void {
    if (this.#isOver) return;
    this.rollout.stop();
    try {
      for (const group of this.#open) if (group.finished > 0) this.#options.onGroup(group);
    } catch (error) {
      this.#reject(error);
      return;
    }
    this.#end(true);
  }

  /** Whether every worker can stop such a response after any token. */
  #isDivisible({ sampling }: GroupSpec): boolean {
    let isDivisible = true;
    for (const worker of this.#options.workers) {
      const support = worker.supports(sampling);
      if (support.kind === "refused") {
        const { field, reason: problem } = support;
        throw new InvalidFieldError({ where: worker.name, field, problem });
      }
      if (support.kind === "whole") isDivisible = false;
    }
    return isDivisible;
  }

  #finished(request: Request): void {
    const { groupId, requests } = request.group;
    this.#options.journal?.finished(request);
    const wanted = this.#wanted.get(groupId);
    if (wanted !== undefined) endRest(this.rollout, requests, wanted);
  }

  #groupFinished(group: Group): void {
    this.#open.delete(group);
    this.#options.onGroup(group);
    if (this.rollout.unfinished === 0) this.#end(false);
  }

  #workerFailed(worker: Worker, message: string): void {
    if (this.rollout.workers.length > 0) return;
    this.#reject(new AppError("no_worker", `${worker.name} failed and none is left: ${message}`));
  }

  #reject(error: unknown): void {
    this.#isOver = true;
    this.rollout.stop();
    this.#done.reject(error);
  }

  #end(interrupted: boolean): void {
    if (this.#isOver) return;
    this.#isOver = true;
    this.rollout.stop();
    const { policy, draft, deterministic, epoch, pool } = this.#options;
    const { meter } = this.rollout;
    meter.ended();
    this.#done.resolve(
      meter.report({ policy, draft, deterministic, epoch, interrupted, pool: pool.stats() }),
    );
  }
}
