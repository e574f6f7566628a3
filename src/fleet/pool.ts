// The workers behind the sidecar. Decides nothing about one of them: `next` (member.ts) does; the pool turns what happens into
// events, and carries out the effects with workers and timers. Only a worker with the current weights ever serves.

import { unreachable } from "../core/base/assert.ts";
import type { Later } from "../core/base/clock.ts";
import { AppError, type ErrorCode, errorText } from "../core/base/errors.ts";
import { type WeightEpoch, type WorkerId, weightEpoch, workerId } from "../core/base/ids.ts";
import type { HeldWeights } from "../core/journal/held-weights.ts";
import type { EngineWorker } from "../core/rollout/worker.ts";
import { Agreement, type NamedWeights } from "./agreement.ts";
import { type FleetHost, type Member, PoolMember, type WorkerSource } from "./engines.ts";
import { giveWeights, type Recipe } from "./give-weights.ts";
import { type Check, type Effect, isCurrent, type MemberEvent, newMember, next } from "./member.ts";

/** Why a member lacks the weights of the next epoch, and what it has instead. */
export type MissedOf = (
  member: Member,
) => Pick<Extract<MemberEvent, { kind: "missed" }>, "reason" | "has">;

export interface WorkerPoolOptions {
  /** The sidecar whose rollout gets the workers. */
  readonly sidecar: FleetHost;
  readonly sources: readonly WorkerSource[];
  readonly later: Later;
  /** Time for an engine to answer when it is given weights. */
  readonly controlMsMax: number;
  readonly changed: (member: Member) => void;
  /** Weights that an earlier process served: engines that open with others are given these, if they can be. */
  readonly before?: Pick<HeldWeights, "base" | "weights" | "doubted"> | null;
  /** Number of workers that must be ready at the same time before the pool serves. Default: 1. */
  readonly workersMin?: number;
}

/** Interval between polls of the requests that a leaving worker still runs. */
const LEAVE_POLL_MS = 50;

export class WorkerPool {
  readonly #options: WorkerPoolOptions;
  readonly #members: PoolMember[];
  readonly #cancels = new Set<() => void>();
  readonly agreement = new Agreement();
  #isAwake: boolean | null = null;
  readonly #sidecar: FleetHost;
  /** Requests that give a newly opened engine the current weights. */
  #recipe: Recipe;
  readonly #initialEpoch: WeightEpoch;
  #isClosed = false;
  /** The wanted number of workers has been ready at the same time. */
  #hasStarted = false;
  /** Id of the newest worker: ids are never reused. */
  #lastId = -1;

  constructor(options: WorkerPoolOptions) {
    this.#options = options;
    this.#sidecar = options.sidecar;
    this.#initialEpoch = options.sidecar.rollout.epoch;
    const { base = "first", weights = null } = options.before ?? {};
    this.#recipe = { base, adapters: [] };
    if (typeof base !== "string") this.agreement.begin([{ name: "the journal", weights }]);
    this.#members = options.sources.map((source) => this.#newMember(source));
  }

  #newMember(source: WorkerSource): PoolMember {
    this.#lastId += 1;
    return new PoolMember(source, workerId(this.#lastId), newMember(this.#sidecar.rollout.epoch));
  }

  /** true: the trainer woke the engines, and an engine that opens asleep is woken. false: it put them to sleep. null: neither. */
  get isAwake(): boolean | null {
    return this.#isAwake;
  }

  tellAwake(isAwake: boolean | null): void {
    this.#isAwake = isAwake;
  }

  /** The weights in service, the operation that loads them, and the engines that may have others. */
  get held(): Pick<HeldWeights, "base" | "weights" | "doubted"> {
    const doubted = this.#members.filter((member) => this.#isDoubted(member));
    const names = doubted.map(({ source }) => source.name);
    return { base: this.#recipe.base, weights: this.agreement.weights, doubted: names };
  }

  /** Whether a successor process could not trust the engine's weights. One not opened yet is as an earlier process left it. */
  #isDoubted({ source, record }: PoolMember): boolean {
    const { attempt, link } = record;
    const isNew = attempt === 0 || (attempt === 1 && link === "opening");
    return isNew ? this.#wasDoubted(source) : source.keepsWeights && !isCurrent(record);
  }

  #wasDoubted({ name, keepsWeights }: WorkerSource): boolean {
    const { doubted = [] } = this.#options.before ?? {};
    return keepsWeights && (doubted === "all" || doubted.includes(name));
  }

  get members(): readonly Member[] {
    return this.#members;
  }

  get hasStarted(): boolean {
    return this.#hasStarted;
  }

  /** Why the pool does not serve; null: it has started, and a worker is ready. */
  get problem(): string | null {
    const { length: ready } = this.#members.filter(({ state }) => state === "ready");
    const { workersMin = 1 } = this.#options;
    if (!this.#hasStarted) return `starting: ${ready} of at least ${workersMin} workers are ready`;
    return ready === 0 ? "no worker is in service" : null;
  }

  /**
   * Opens all workers at the same time, and keeps trying those that fail. Resolves after the first attempt at each.
   * @throws AppError: an engine can never be opened; then all are closed.
   */
  async open(): Promise<void> {
    this.#sidecar.observe({
      workerFailed: (worker, reason) => {
        const member = this.#members.find((m) => m.worker === worker || m.candidate === worker);
        if (member !== undefined) this.#apply(member, { kind: "failed", reason });
      },
    });
    try {
      await Promise.all(
        this.#members.map(async (member) => {
          const error = await this.#open(member);
          if (error instanceof AppError && FINAL_CODES.includes(error.code)) throw error;
        }),
      );
    } catch (error) {
      await this.close();
      throw error;
    }
  }

  /** Adds an engine later: it is opened, gets the current weights if it lacks them, and serves. */
  join(source: WorkerSource): Member {
    const leaving = this.#members.find(
      ({ state, source: { name } }) => state === "leaving" && name === source.name,
    );
    if (leaving !== undefined) {
      this.#apply(leaving, { kind: "stay" });
      return leaving;
    }
    const member = this.#newMember(source);
    this.#members.push(member);
    this.#options.changed(member);
    void this.#open(member);
    return member;
  }

  /**
   * Removes the worker once its requests have ended, or after `msMax`: the rest continue elsewhere from their last
   * tokens. It gets no new requests meanwhile.
   */
  leave(workerId: WorkerId, msMax: number): void {
    const member = this.#members.find((member) => member.workerId === workerId);
    if (member !== undefined) this.#apply(member, { kind: "leave", msMax });
  }

  /**
   * Records that the weights have changed on `current`: every other member is fenced, or opened again. Call before the
   * sidecar advances. `recipe` gives the same weights to an engine that is opened later.
   */
  changedWeights(current: ReadonlySet<Member>, recipe: Recipe, missedOf: MissedOf): void {
    this.#recipe = recipe;
    const epoch = weightEpoch(this.#sidecar.rollout.epoch + 1);
    this.tell(current, () => ({ kind: "updated", epoch }));
    this.#agree(current);
    const others = this.#members.filter((member) => !current.has(member));
    this.tell(others, (member) => ({ ...missedOf(member), kind: "missed", epoch }));
  }

  /** Applies an event to each of the members: see MemberEvent. */
  tell(members: Iterable<Member>, eventOf: (member: Member) => MemberEvent): void {
    const recipients = new Set(members);
    for (const member of this.#members.filter((member) => recipients.has(member))) {
      this.#apply(member, eventOf(member));
    }
  }

  /** Members that were fenced and have the current weights now serve again. Call after the sidecar advanced. */
  async unfence(members: ReadonlySet<Member>): Promise<void> {
    const fenced = this.#members.filter((m) => members.has(m) && m.state === "fenced");
    await Promise.all(fenced.map((member) => this.#open(member)));
  }

  async close(): Promise<void> {
    this.#isClosed = true;
    for (const cancel of this.#cancels) cancel();
    const workers = this.#members.flatMap(({ worker, candidate }) => [worker, candidate]);
    await Promise.all(workers.map((worker) => worker?.close()));
  }

  /** Begins an epoch with the weights that most of `current` have, and fences those that have others. */
  #agree(current: ReadonlySet<Member>): void {
    const open = this.#members.filter((member) => current.has(member) && member.worker !== null);
    this.agreement.begin(open.map(namedWeightsOf));
    for (const member of open) {
      const difference = this.agreement.digestDifference(namedWeightsOf(member));
      if (difference === null) this.agreement.accept(namedWeightsOf(member));
      else this.#apply(member, { kind: "differs", reason: difference });
    }
  }

  #apply(member: PoolMember, event: MemberEvent): void {
    const { member: record, effects } = next(member.record, event);
    member.record = record;
    for (const effect of effects) this.#carryOut(member, effect);
  }

  #carryOut(member: PoolMember, effect: Effect): void {
    const { worker } = member;
    const rollout = this.#sidecar.rollout;
    switch (effect.kind) {
      case "open":
        member.opening = this.#attempt(member, effect.attempt);
        return;
      case "close":
        void member.worker?.close();
        void member.candidate?.close();
        member.worker = null;
        member.candidate = null;
        return;
      case "use_opened":
        member.worker = member.candidate;
        member.candidate = null;
        return;
      case "advance":
        (member.candidate ?? worker)?.send([{ kind: "advance", epoch: rollout.epoch }]);
        return;
      case "place":
        if (worker !== null) this.#place(member, worker);
        return;
      case "remove":
        if (worker !== null) rollout.removeWorker(worker);
        return;
      case "set_reachable":
        if (worker !== null) {
          rollout.setReachable(worker, effect.isReachable, effect.isLeaving);
        }
        return;
      case "retry":
        this.#after(effect.ms, () => {
          if (member.record.attempt === effect.attempt) void this.#open(member);
        });
        return;
      case "drain":
        void this.#drain(member, effect);
        return;
      case "forget":
        this.#members.splice(this.#members.indexOf(member), 1);
        rollout.forgetWorker(member.workerId);
        return;
      case "tell":
        this.#options.changed(member);
        return;
      default:
        unreachable(effect);
    }
  }

  /** Runs `act` after `ms`, unless the pool is closed by then. */
  #after(ms: number, act: () => void): void {
    if (this.#isClosed) return;
    const cancel = this.#options.later(() => {
      this.#cancels.delete(cancel);
      act();
    }, ms);
    this.#cancels.add(cancel);
  }

  #place(member: PoolMember, worker: EngineWorker): void {
    this.agreement.accept(namedWeightsOf(member));
    this.#sidecar.rollout.addWorker(worker);
    const { length: ready } = this.#members.filter(({ state }) => state === "ready");
    if (ready >= (this.#options.workersMin ?? 1)) this.#hasStarted = true;
  }

  /** Waits until nothing runs on the member, its time is over, or its worker is gone. */
  async #drain(
    member: PoolMember,
    { departure, msMax }: Extract<Effect, { kind: "drain" }>,
  ): Promise<void> {
    const { worker } = member;
    const rollout = this.#sidecar.rollout;
    const polls = Math.ceil(msMax / LEAVE_POLL_MS);
    const isBusy = () => worker !== null && rollout.busyWorkers.includes(worker) === true;
    const what = `the removal of engine ${member.workerId}`;
    const wait = { what, forWhom: "its responses", reason: "they still run there", msMax };
    const isDrained = this.#sidecar.waits.begin(wait);
    for (let i = 0; i < polls && isBusy() && member.worker === worker && !this.#isClosed; i += 1) {
      await new Promise<void>((resolve) => {
        this.#options.later(resolve, LEAVE_POLL_MS);
      });
      if (member.record.departure !== departure) break;
    }
    isDrained();
    this.#apply(member, { kind: "drained", departure });
  }

  /** Opens the member again. Resolves to the error if it could not be opened, else null. */
  #open(member: PoolMember): Promise<unknown> {
    if (this.#isClosed) return Promise.resolve(null);
    this.#apply(member, { kind: "open" });
    return member.opening;
  }

  /** Carries out an attempt: the member serves if its weights are, or can be made, current. Returns as `#open` does. */
  async #attempt(member: PoolMember, attempt: number): Promise<unknown> {
    const sidecar = this.#sidecar;
    const { source, workerId, worker: before, candidate } = member;
    const isLast = () =>
      member.record.attempt === attempt && member.state !== "leaving" && !this.#isClosed;
    const { epoch } = sidecar.rollout;
    let opened: EngineWorker | null = null;
    const reach = (reason: string | null) => {
      // Of a worker that was opened before: the member has another one by now.
      if (opened !== null && opened !== member.worker && opened !== member.candidate) return;
      this.#apply(member, { kind: "reach", reason });
    };
    try {
      // Its failure is not the member's any more.
      member.worker = null;
      member.candidate = null;
      await Promise.all([before?.close(), candidate?.close()]);
      const reason = "it is being opened: it loads weights, or cannot be reached";
      const wait = { what: `engine ${workerId}`, forWhom: source.name, reason, msMax: null };
      const worker = await sidecar.waits.during(wait, () =>
        source.open({ workerId, epoch, reach }),
      );
      opened = worker;
      if (!isLast()) {
        await worker.close();
        return null;
      }
      member.candidate = worker;
      // An engine that reports no weights may have restarted with its first ones while no sidecar saw it.
      const { base } = this.#recipe;
      const isAnew = typeof base !== "string" || (base === "unknown" && attempt > 1);
      const isDoubted = isAnew || this.#wasDoubted(source);
      const isInherited = isDoubted && (worker.weights ?? null) === null;
      const isFirst = epoch === this.#initialEpoch && !isInherited;
      const { keepsWeights } = source;
      this.#apply(member, { kind: "opened", attempt, epoch, isFirst, keepsWeights });
      sidecar.rollout.watch(worker);
      while (member.candidate === worker && isLast()) await this.#check(member, worker);
      return null;
    } catch (error) {
      if (isLast()) this.#apply(member, { kind: "open_failed", attempt, reason: errorText(error) });
      return error;
    }
  }

  /** Gives the candidate the weights and adapters that it lacks, and compares it with the others. */
  async #check(member: PoolMember, worker: EngineWorker): Promise<void> {
    const sidecar = this.#sidecar;
    const { record } = member;
    const { epoch } = sidecar.rollout;
    const { attempt } = record;
    if (record.wanted !== epoch) {
      const result: Check = { kind: "current" };
      this.#apply(member, { kind: "checked", attempt, checked: record.wanted, epoch, result });
    }
    const { later, controlMsMax: msMax } = this.#options;
    const lacks = this.#difference(member);
    const { isAwake } = this;
    const outcome = await giveWeights(worker, this.#recipe, {
      lacks,
      agreement: this.agreement,
      isAsOpened: member.record.uncertain === null,
      isAwake: isAwake === true,
      asking: { nextEpoch: epoch, msMax, later, sidecar },
    });
    if (member.candidate !== worker || this.#isClosed) return;
    // The others were woken or sent to sleep meanwhile: it begins again.
    if (isAwake !== this.isAwake) return;
    // From here on nothing is awaited: the epoch is still that one when it serves.
    const current = sidecar.rollout.epoch;
    // Engines that open at the same time are compared as each begins to serve.
    const reason =
      outcome.kind === "current" ? this.agreement.digestDifference(namedWeightsOf(member)) : null;
    const result: Check =
      reason === null ? outcome : { kind: "behind", reason, isGiven: lacks !== null };
    this.#apply(member, { kind: "checked", attempt, checked: epoch, epoch: current, result });
  }

  /** How the weights of a newly opened engine differ from the current ones; null: they do not. */
  #difference(member: PoolMember): string | null {
    const engine = namedWeightsOf(member);
    // It names the weights that serve, whatever was uncertain before.
    if (engine.weights !== null && engine.weights === this.agreement.weights) return null;
    const difference = this.agreement.digestDifference(engine);
    if (isCurrent(member.record)) return difference;
    return difference ?? "came back without the current weights";
  }
}

function namedWeightsOf({ source, worker, candidate }: PoolMember): NamedWeights {
  return { name: source.name, weights: (candidate ?? worker)?.weights ?? null };
}

/** Errors that no further attempt would cure: in the settings, or in files and libraries of this machine. */
const FINAL_CODES: readonly ErrorCode[] = [
  "usage",
  "invalid_config",
  "not_lossless",
  "model_unreadable",
  "native_library_missing",
  "kv_budget_too_small",
  "core_version",
];
