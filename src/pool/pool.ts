// The workers behind the sidecar: opens them, opens a failed one again with growing pauses, and keeps one
// whose weights are not current out of the rollout. Only a worker with the current weights ever serves.
//
//   down -> ready -> reconnecting -> ready    the session went on
//                         |  \-----> ready    it was over: its requests have moved, the worker was opened again
//           ready -> down, fenced -> ready

import { AppError, type ErrorCode, errorText } from "../core/base/errors.ts";
import { type WeightEpoch, type WeightsId, type WorkerId, workerId } from "../core/base/ids.ts";
import type { Worker } from "../core/rollout/worker.ts";
import { giveWeights, type Recipe } from "./give-weights.ts";
import type { PoolHost } from "./host.ts";
import { Gathering, type Holding, WeightsAgreement } from "./weights-agreement.ts";

/** Where a worker comes from. */
export interface WorkerSource {
  /** What people call it. */
  readonly name: string;
  /**
   * true: the engine is a server of its own, which keeps its weights across connections. false: it is
   * opened with the weights that the sidecar began with.
   */
  readonly keepsWeights: boolean;
  /** @throws AppError: it cannot be reached, or is not what it should be. */
  open(options: OpenOptions): Promise<Worker>;
}

export interface OpenOptions {
  readonly workerId: WorkerId;
  readonly epoch: WeightEpoch;
  /** Called with the reason while the worker cannot be reached but its requests may still run there; null: reachable. */
  readonly reach: (lost: string | null) => void;
}

/**
 * ready: it serves. reconnecting: it served, its connection is lost and is being made again; it takes nothing new.
 * fenced: reachable, but its weights are not current, or not those of the others. down: not reachable. leaving: it takes
 * nothing new, and is removed when what it runs has ended.
 */
export type MemberState = "ready" | "reconnecting" | "fenced" | "down" | "leaving";

export interface Member {
  readonly source: WorkerSource;
  readonly workerId: WorkerId;
  readonly state: MemberState;
  /** Why it does not serve; null: it does. */
  readonly reason: string | null;
  /** For its control plane; null: it is down. */
  readonly worker: Worker | null;
}

type Mutable<T> = { -readonly [K in keyof T]: T[K] };
type PoolMember = Mutable<Member> & {
  retryMs: number;
  /** Tries in a row that did not open it. */
  tries: number;
  /** Its worker's last report of a lost connection; null: connected. */
  lost: string | null;
  /** Its worker has the current weights, and the rollout has it. */
  isPlaced: boolean;
  /** The engine being opened: nothing else uses it before it serves or is fenced. null: none. */
  candidate: Worker | null;
  /** Why its weights are unknown; null: those it was opened with, or was given since. */
  taint: string | null;
  /** It is being removed, or was: it is not opened again. */
  isLeaving: boolean;
  /** Times that it was to leave or to stay: of several that overlap, the last one counts. */
  turns: number;
  /** Times that its opening was begun: of several that overlap, the last one counts. */
  openings: number;
};

export interface WorkerPoolOptions {
  readonly sources: readonly WorkerSource[];
  /** Runs something after a while; returns what cancels it. */
  readonly later: (act: () => void, ms: number) => () => void;
  /** Time for an engine to answer when it is given weights. */
  readonly controlMsMax: number;
  readonly changed: (member: Member) => void;
  /** Weights that an earlier process served: engines that open with others are given these, if they can be. */
  readonly before?: { readonly base: Recipe["base"]; readonly weights: WeightsId | null } | null;
  /** Number of workers that must be ready at the same time before the pool serves. Default: 1. */
  readonly workersMin?: number;
}

/** Between two tries to open a worker that is down: at first, and at most. A try is an attempt to connect. */
const RETRY_MS = 100;
const RETRY_MS_MAX = 2_000;
const TRIES_TOLD = 8;
const TRIES_PER_MINUTE = 30;
/** Time at the start for which engines wait for one another before their weights are compared. */
const GATHER_MS = 500;
/** Time of service after which a worker begins with the shortest pause again. */
const SERVED_MS = 10_000;
/** Between two looks at what a worker that leaves still runs. */
const LEAVE_POLL_MS = 50;

export class WorkerPool {
  readonly #options: WorkerPoolOptions;
  readonly #members: PoolMember[];
  readonly #cancels = new Set<() => void>();
  readonly #agreement = new WeightsAgreement();
  #sidecar: PoolHost | null = null;
  /** Of those who are opened at the start; null: it is over. */
  #gathering: Gathering<PoolMember> | null = null;
  /** Requests that give a newly opened engine the current weights. */
  #recipe: Recipe = { base: "first", adapters: [] };
  #initialEpoch: WeightEpoch | null = null;
  #isClosed = false;
  /** As many workers as were wanted have been ready at the same time. */
  #hasStarted = false;
  /** Of the worker that came last: ids are never used again. */
  #lastId = -1;

  constructor(options: WorkerPoolOptions) {
    this.#options = options;
    if (options.before) this.#recipe = { base: options.before.base, adapters: [] };
    this.#members = options.sources.map((source) => this.#newMember(source));
  }

  #newMember(source: WorkerSource): PoolMember {
    this.#lastId += 1;
    return {
      source,
      workerId: workerId(this.#lastId),
      state: "down",
      reason: "not opened yet",
      worker: null,
      retryMs: RETRY_MS,
      tries: 0,
      lost: null,
      isPlaced: false,
      candidate: null,
      taint: null,
      isLeaving: false,
      turns: 0,
      openings: 0,
    };
  }

  /** The weights in service, and what gives them to an engine. */
  get held(): { readonly base: Recipe["base"]; readonly weights: WeightsId | null } {
    return { base: this.#recipe.base, weights: this.#agreement.weights };
  }

  get members(): readonly Member[] {
    return this.#members;
  }

  get hasStarted(): boolean {
    return this.#hasStarted;
  }

  /** What it waits for before it serves, or null: it has started, and a worker is ready. */
  get problem(): string | null {
    const { length: ready } = this.#members.filter(({ state }) => state === "ready");
    const { workersMin = 1 } = this.#options;
    if (!this.#hasStarted) return `starting: ${ready} of at least ${workersMin} workers are ready`;
    return ready === 0 ? "no worker is in service" : null;
  }

  /** The sidecar whose rollout gets the workers. Call before `open`. */
  attach(sidecar: PoolHost): void {
    this.#sidecar = sidecar;
    this.#initialEpoch = sidecar.rollout.epoch;
    sidecar.observe({ workerFailed: (worker, message) => this.#failed(worker, message) });
  }

  /**
   * Opens every worker, each for itself: one that cannot be opened is tried again and again. Resolves when each has
   * been tried once. @throws AppError: no further try would open one; then all are closed.
   */
  async open(): Promise<void> {
    const gathering = new Gathering(this.#members, {
      ended: () => {
        this.#gathering = null;
        if (this.#sidecar?.rollout.epoch !== this.#initialEpoch) return;
        this.#agreement.begin(this.#inherited ?? this.#members.map(holdingOf));
      },
      cancel: this.#options.later(() => gathering.end(), GATHER_MS),
    });
    this.#gathering = gathering;
    try {
      await Promise.all(
        this.#members.map(async (member) => {
          const error = await this.#reopen(member, { hasWeights: false });
          if (isFinal(error)) throw error;
        }),
      );
    } catch (error) {
      await this.close();
      throw error;
    }
  }

  /** A worker that comes later. It is opened, given the current weights where it needs them, and serves. */
  join(source: WorkerSource): Member {
    const leaving = this.#members.find((one) => one.isLeaving && one.source.name === source.name);
    if (leaving !== undefined) return this.#stay(leaving);
    const member = this.#newMember(source);
    this.#members.push(member);
    this.#options.changed(member);
    void this.#reopen(member, { hasWeights: false });
    return member;
  }

  /**
   * The worker takes nothing new, and is removed when what it runs has ended, or after `msMax`: what it runs then goes
   * on elsewhere from its last token.
   */
  async leave(workerId: WorkerId, msMax: number): Promise<void> {
    const member = this.#members.find((one) => one.workerId === workerId);
    const rollout = this.#sidecar?.rollout;
    if (member === undefined || member.isLeaving || rollout === undefined) return;
    Object.assign(member, { isLeaving: true, state: "leaving", reason: "removed by a client" });
    member.turns += 1;
    this.#options.changed(member);
    const { worker, turns } = member;
    if (worker !== null && member.isPlaced) {
      rollout.setReachable(worker, false);
      const polls = Math.ceil(msMax / LEAVE_POLL_MS);
      for (let i = 0; i < polls && rollout.busyWorkers.includes(worker); i += 1) {
        if (this.#isClosed || member.worker !== worker) break;
        await new Promise<void>((resolve) => {
          this.#options.later(resolve, LEAVE_POLL_MS);
        });
        if (member.turns !== turns) return;
      }
      if (member.worker === worker) rollout.removeWorker(worker);
    }
    this.#members.splice(this.#members.indexOf(member), 1);
    rollout.forgetWorker(workerId);
    await Promise.all([member.worker?.close(), member.candidate?.close()]);
  }

  /** It has come back before it was gone: two connections to one engine would count its room twice. */
  #stay(member: PoolMember): Member {
    member.isLeaving = false;
    member.turns += 1;
    if (member.worker !== null && member.isPlaced) this.#reach(member, member.worker);
    else void this.#reopen(member, { hasWeights: false });
    return member;
  }

  /**
   * The weights have changed on `current`; every other member is fenced, or opened again if it is `lost`. Call
   * before the sidecar advances. `recipe`: what gives an engine that comes later the same weights. `spoils`: what the
   * others have is not known.
   */
  changedWeights(options: {
    current: ReadonlySet<Member>;
    lost: ReadonlySet<Member>;
    recipe: Recipe;
    reasonOf: (member: Member) => string;
    spoils: boolean;
  }): void {
    this.#recipe = options.recipe;
    this.#agree(options.current);
    for (const member of this.#members) {
      if (options.current.has(member)) member.taint = null;
      if (member.worker === null || options.current.has(member)) continue;
      const reason = options.reasonOf(member);
      if (options.lost.has(member)) {
        this.#lose(member, reason);
        continue;
      }
      if (options.spoils) member.taint ??= reason;
      if (member.state !== "fenced") this.#fence(member, reason);
    }
  }

  /** These may get other weights now. Returns those that were not doubted before. */
  doubt(members: Iterable<Member>, reason: string): Member[] {
    const asked = new Set(members);
    const doubted = this.#members.filter((member) => asked.has(member) && member.taint === null);
    for (const member of doubted) member.taint = reason;
    return doubted;
  }

  /** They have not got other weights after all. */
  trust(members: ReadonlySet<Member>): void {
    for (const member of this.#members) if (members.has(member)) member.taint = null;
  }

  /**
   * Of these, fenced ones that were reachable all the time have the current weights, and serve again. One that failed at
   * an update does not: the name that it reports says nothing of what it has.
   */
  restore(members: ReadonlySet<Member>): void {
    const sidecar = this.#sidecar;
    if (sidecar === null) return;
    for (const member of this.#members) {
      const { worker } = member;
      if (!members.has(member) || member.state !== "fenced" || worker === null) continue;
      if (member.taint !== null) continue;
      // It drops what it has of the epoch in which it was fenced.
      worker.send([{ kind: "advance", epoch: sidecar.rollout.epoch }]);
      this.#ready(member, worker, sidecar);
    }
  }

  /** They can be reached, and their weights are not current: they serve again after `restore` or `unfence`. */
  fence(members: ReadonlySet<Member>, reasonOf: (member: Member) => string): void {
    for (const member of this.#members) {
      if (!members.has(member) || !member.isPlaced || member.isLeaving) continue;
      this.#fence(member, reasonOf(member));
    }
  }

  /** Their weights are unknown: they serve again once they are opened with known ones, or given some. */
  spoiled(members: ReadonlySet<Member>, reasonOf: (member: Member) => string): void {
    for (const member of this.#members) {
      if (!members.has(member)) continue;
      member.taint = reasonOf(member);
      if (member.worker !== null) this.#lose(member, member.taint);
    }
  }

  /** They did not carry out a request. */
  reopen(members: ReadonlySet<Member>, reason: string): void {
    for (const member of this.#members) {
      if (members.has(member) && member.worker !== null) this.#lose(member, reason);
    }
  }

  /** Members that were fenced and have the current weights now serve again. Call after the sidecar advanced. */
  async unfence(members: ReadonlySet<Member>): Promise<void> {
    const fenced = this.#members.filter((m) => members.has(m) && m.state === "fenced");
    await Promise.all(fenced.map((member) => this.#reopen(member, { hasWeights: true })));
  }

  async close(): Promise<void> {
    this.#isClosed = true;
    this.#gathering?.end();
    for (const cancel of this.#cancels) cancel();
    const workers = this.#members.flatMap(({ worker, candidate }) => [worker, candidate]);
    await Promise.all(workers.map((worker) => worker?.close()));
  }

  /** What engines are compared with at the start; null: with one another. */
  get #inherited(): Holding[] | null {
    const { base, weights } = this.#options.before ?? { base: "first", weights: null };
    return typeof base === "string" || weights === null ? null : [{ name: "the journal", weights }];
  }

  /** A new epoch begins with the weights that most of these have; who has others is fenced. */
  #agree(current: ReadonlySet<Member>): void {
    const there = this.#members.filter((member) => current.has(member) && member.worker !== null);
    this.#agreement.begin(there.map(holdingOf));
    for (const member of there) {
      const difference = this.#agreement.difference(holdingOf(member));
      if (difference === null) this.#agreement.accept(holdingOf(member));
      else this.#fence(member, difference);
    }
  }

  #fence(member: PoolMember, reason: string): void {
    member.isPlaced = false;
    // One that leaves does so without its requests.
    if (!member.isLeaving) Object.assign(member, { state: "fenced", reason });
    if (member.worker !== null) this.#sidecar?.rollout.removeWorker(member.worker);
    this.#options.changed(member);
  }

  /** It does not answer any more, or it was removed from the rollout with its listener. */
  #lose(member: PoolMember, reason: string): void {
    member.state = "down";
    if (member.worker !== null) this.#sidecar?.rollout.removeWorker(member.worker);
    this.#down(member, reason);
  }

  #failed(worker: Worker, message: string): void {
    const member = this.#members.find((m) => m.worker === worker || m.candidate === worker);
    if (member !== undefined) this.#down(member, message);
  }

  async #openWorker(member: PoolMember, epoch: WeightEpoch): Promise<Worker> {
    const { workerId, source } = member;
    let opened: Worker | null = null;
    member.lost = null;
    const reach = (lost: string | null) => {
      // Of a worker that was opened before: the member has another one by now.
      if (opened !== null && opened !== member.worker && opened !== member.candidate) return;
      member.lost = lost;
      if (member.isLeaving) return;
      if (member.worker !== null && member.isPlaced) this.#reach(member, member.worker);
    };
    opened = await source.open({ workerId, epoch, reach });
    return opened;
  }

  #reach(member: PoolMember, worker: Worker): void {
    const { lost } = member;
    const isNews = member.reason !== lost;
    member.state = lost === null ? "ready" : "reconnecting";
    member.reason = lost;
    this.#sidecar?.rollout.setReachable(worker, lost === null);
    if (isNews) this.#options.changed(member);
  }

  #down(member: PoolMember, reason: string): void {
    void member.worker?.close();
    void member.candidate?.close();
    const state = stateWithout(member);
    const isNews = member.worker !== null || member.state !== state || member.reason !== reason;
    Object.assign(member, { state, worker: null, candidate: null, reason, isPlaced: false });
    member.tries += 1;
    if (isNews || isReported(member.tries)) this.#options.changed(member);
    if (this.#isClosed || member.isLeaving) return;
    const { openings } = member;
    const cancel = this.#options.later(() => {
      this.#cancels.delete(cancel);
      if (member.openings === openings) void this.#reopen(member, { hasWeights: false });
    }, member.retryMs);
    this.#cancels.add(cancel);
    member.retryMs = Math.min(RETRY_MS_MAX, member.retryMs * 2);
  }

  /** Opens the member again; it serves if its weights are, or can be made, current. Returns why it could not be opened. */
  async #reopen(member: PoolMember, options: { hasWeights: boolean }): Promise<unknown> {
    const sidecar = this.#sidecar;
    if (sidecar === null || this.#isClosed || member.isLeaving) return null;
    member.openings += 1;
    const { openings, source, worker: before } = member;
    const isLast = () => member.openings === openings && !this.#isClosed && !member.isLeaving;
    const { epoch } = sidecar.rollout;
    try {
      // Its failure is not the member's any more.
      member.worker = null;
      await before?.close();
      const worker = await this.#openWorker(member, epoch);
      if (!isLast()) {
        await worker.close();
        return null;
      }
      member.candidate = worker;
      sidecar.rollout.watch(worker);
      if (!source.keepsWeights) member.taint = null;
      // An engine that reports no weights may have restarted with its first ones while no sidecar saw it.
      const isInherited =
        typeof this.#recipe.base !== "string" && (worker.weights ?? null) === null;
      const hasWeights =
        (epoch === this.#initialEpoch && !isInherited) ||
        (options.hasWeights && source.keepsWeights);
      // At the start those who come at about the same time are compared with one another, in whatever order they opened.
      await this.#gathering?.arrive(member);
      await this.#bringUp(member, worker, { epoch, hasWeights, isLast, sidecar });
      return null;
    } catch (error) {
      void this.#gathering?.arrive(member);
      if (isLast()) this.#down(member, errorText(error));
      return error;
    }
  }

  /** Gives the candidate what it lacks, until the weights do not change meanwhile. Then it serves, or is fenced. */
  async #bringUp(
    member: PoolMember,
    worker: Worker,
    opened: { epoch: WeightEpoch; hasWeights: boolean; isLast: () => boolean; sidecar: PoolHost },
  ): Promise<void> {
    let { epoch, hasWeights } = opened;
    const { isLast, sidecar } = opened;
    for (;;) {
      // It failed while it was brought up to date: `#failed` has seen to it.
      if (member.candidate !== worker || !isLast()) return;
      if (sidecar.rollout.epoch !== epoch) {
        epoch = sidecar.rollout.epoch;
        hasWeights = false;
        worker.send([{ kind: "advance", epoch }]);
      }
      const isTrusted = hasWeights && member.taint === null;
      let difference = this.#difference(member, { isTrusted });
      const hasBase = difference === null;
      const given = await giveWeights(worker, this.#recipe, {
        ...{ epoch, hasBase, isAsOpened: member.taint === null },
        limits: { msMax: this.#options.controlMsMax, later: this.#options.later, sidecar },
      });
      if (member.candidate !== worker || !isLast()) return;
      // From here on nothing is awaited: the epoch is still that one when it serves.
      if (sidecar.rollout.epoch !== epoch) continue;
      if (given.kind === "lost") return this.#down(member, given.reason);
      if (given.kind === "given") member.taint = null;
      if (given.kind === "given" && !hasBase) {
        difference = this.#agreement.difference(holdingOf(member));
      } else if (given.kind === "refused") {
        difference ??= "came back without the adapters that the others serve";
        difference += given.reason;
      }
      Object.assign(member, { worker, candidate: null });
      if (difference === null) this.#ready(member, worker, sidecar);
      else this.#fence(member, member.taint ?? difference);
      return;
    }
  }

  /** null: a newly opened engine has the current weights. `isTrusted`: it should. */
  #difference(member: PoolMember, { isTrusted }: { isTrusted: boolean }): string | null {
    const holding = holdingOf(member);
    // Whatever was feared of it, these are the weights that serve.
    if (this.#agreement.includes(holding.weights)) return null;
    const difference = this.#agreement.difference(holding);
    return isTrusted ? difference : (difference ?? "came back without the current weights");
  }

  #ready(member: PoolMember, worker: Worker, sidecar: PoolHost): void {
    this.#agreement.accept(holdingOf(member));
    Object.assign(member, { state: "ready", reason: null, tries: 0, isPlaced: true, taint: null });
    sidecar.rollout.addWorker(worker);
    const { length: ready } = this.#members.filter(({ state }) => state === "ready");
    if (ready >= (this.#options.workersMin ?? 1)) this.#hasStarted = true;
    this.#options.changed(member);
    if (member.lost !== null) this.#reach(member, worker);
    const cancel = this.#options.later(() => {
      this.#cancels.delete(cancel);
      if (member.worker === worker) member.retryMs = RETRY_MS;
    }, SERVED_MS);
    this.#cancels.add(cancel);
  }
}

/** Of a member whose worker has ended. A reconnection stays one: the pool continues where the session ended. */
function stateWithout({ isLeaving, state }: PoolMember): MemberState {
  if (isLeaving) return "leaving";
  return state === "reconnecting" ? "reconnecting" : "down";
}

function holdingOf({ source, worker, candidate }: PoolMember): Holding {
  return { name: source.name, weights: (candidate ?? worker)?.weights ?? null };
}

/** Of attempts that fail alike, the first ones are reported, and then about one per minute. */
function isReported(tries: number): boolean {
  return tries <= TRIES_TOLD || tries % TRIES_PER_MINUTE === 0;
}

/** What no further try would change: the settings, and files and libraries of this machine. */
const FINAL_CODES: readonly ErrorCode[] = [
  "usage",
  "invalid_config",
  "not_lossless",
  "model_unreadable",
  "native_library_missing",
  "kv_budget_too_small",
  "core_version",
];

function isFinal(error: unknown): boolean {
  return error instanceof AppError && FINAL_CODES.includes(error.code);
}

export interface Reachable {
  readonly member: Member;
  readonly worker: Worker;
}

/** The members that are there, in order. */
export function connected(members: readonly Member[]): Reachable[] {
  return members.flatMap((member) =>
    member.worker === null ? [] : [{ member, worker: member.worker }],
  );
}

/** The members that can be spoken to, in order. @throws AppError no_worker: there is none. */
export function reachable(members: readonly Member[]): Reachable[] {
  const there = connected(members);
  if (there.length === 0) throw new AppError("no_worker", "no worker can be reached");
  return there;
}
