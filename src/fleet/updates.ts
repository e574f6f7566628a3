// Weight updates over all engines: who has which weights, and when the next weight epoch begins.
//
//   idle --start--> open --part*--> (changed) --finish--> canary --> next epoch
//   idle --update, reload_weights, ...--> canary --> next epoch
//   open --abandon, or nothing for too long--> idle, under the same epoch
//
// While weights change nothing runs, even if a client pauses and resumes meanwhile. Every engine that has taken them generates a
// few tokens before the epoch begins. An engine that fails is fenced; those that succeeded continue. Where all refuse the
// request itself (4xx), nothing has changed; where none succeeded but one may have begun, the next epoch begins without
// engines. Nothing waits for an engine for longer than `timeoutMs`.

import { AppError } from "../core/base/errors.ts";
import type { WeightEpoch } from "../core/base/ids.ts";
import type { EngineOperation } from "../core/rollout/operation.ts";
import { type AdapterChange, Adapters } from "./adapters.ts";
import type { Agreement } from "./agreement.ts";
import {
  CallBound,
  type CanaryFailed,
  connected,
  type EngineAnswers,
  lostIn,
  type Member,
  mayHaveChanged,
  outcomeOf,
  takenIn,
  textOf,
  tookOf,
  UpdateEngines,
} from "./engines.ts";
import { GenerationHold, type GenerationHoldOptions, type PauseState } from "./generation-hold.ts";
import type { Recipe } from "./give-weights.ts";
import type { MissedOf, WorkerPool } from "./pool.ts";

export interface WeightsOptions extends GenerationHoldOptions {
  readonly pool: WorkerPool;
  /** Names of the model itself, which no adapter can have. */
  readonly modelNames: readonly string[];
  readonly notice: (notice: WeightsNotice) => void;
  /** Records the weights for a successor process. Resolves, within some seconds, when it would find them on disk. */
  readonly keep?: (weights: WeightUpdates) => Promise<void>;
}

/** Events for the operator's log, besides the answers. */
export type WeightsNotice =
  | { readonly kind: "abandoned"; readonly reason: string; readonly reopened: string }
  /** The engine reports another weight version than the current one, which other engines report. */
  | { readonly kind: "stale"; readonly worker: string; readonly reason: string }
  /** `by`, a worker or a request, names weights that were not loaded through this server. doubted: it was not believed. */
  | { readonly kind: "learned" | "doubted"; readonly version: string; readonly by: string }
  | CanaryFailed;

/** Limit of concurrent calls that change weights: a trainer waits for each answer, and few trainers or retries overlap. */
const CALLS_MAX = 64;
const NAMES_MAX = 1024;

const FINISH: EngineOperation = { kind: "update", step: "finish", body: {} };

export class WeightUpdates {
  readonly #options: WeightsOptions;
  readonly hold: GenerationHold;
  readonly #engines: UpdateEngines;
  /** The trainer's own names for the weights of epochs. */
  readonly #names = new Map<WeightEpoch, string>();
  /** null: no update of several requests is open. */
  #open: { isChanged: boolean } | null = null;
  /** An update of several requests was open when the process before this one ended, and no other has come since. */
  #isCutOff = false;
  readonly #adapters: Adapters;
  /** Queue of control requests that change weights: one at a time. */
  #tail: Promise<unknown> = Promise.resolve();
  readonly #bound = new CallBound(
    CALLS_MAX,
    "that change weights or adapters are under way or wait",
  );
  /** An abort that waits for its turn; null: none does. */
  #aborting: Promise<string[]> | null = null;
  #cancelIdle: () => void = () => {};

  constructor(options: WeightsOptions) {
    this.#options = options;
    this.hold = new GenerationHold(options);
    this.#engines = new UpdateEngines(options);
    this.#adapters = new Adapters({
      ...options,
      engines: this.#engines,
      advance: (current, operation, outcome) =>
        this.#advance(current, operation, outcome, options.pool.held.base),
    });
  }

  #keep(): Promise<void> {
    return this.#options.keep?.(this) ?? Promise.resolve();
  }

  /** The name of an epoch's weights for clients: the trainer's, or the epoch's number. */
  version(epoch: WeightEpoch): string {
    return this.#names.get(epoch) ?? String(epoch);
  }

  get current(): string {
    return this.version(this.#options.sidecar.rollout.epoch);
  }

  /** The engines' memory was freed, and generation is paused until they have it again. */
  get isAsleep(): boolean {
    const { pool, sidecar } = this.#options;
    return pool.isAwake === false && sidecar.rollout.pauseMode !== null;
  }

  get isUpdating(): boolean {
    return this.hold.isHeld;
  }

  nameUnlessNamed(version: string): void {
    const { epoch } = this.#options.sidecar.rollout;
    if (!this.#names.has(epoch)) this.name(epoch, version);
  }

  /**
   * Begins the next epoch because engines got other weights past this server: `current` serve on, the others are
   * fenced. Not during an update.
   */
  begin(version: string, current: ReadonlySet<Member>, reasonOf: (member: Member) => string): void {
    const { pool, sidecar } = this.#options;
    this.name(this.#engines.next, version);
    pool.agreement.prepare(this.#engines.next);
    // An engine that restarts has its first weights again, and only the trainer has these.
    const isServers = [...current].some(({ source }) => source.keepsWeights);
    const base = isServers ? "unknown" : pool.held.base;
    this.#begin(base, current, (member) => ({ reason: reasonOf(member), has: "others" }));
    const { epoch } = sidecar.rollout;
    pool.tell(current, () => ({ kind: "judged", stale: null, epoch }));
  }

  /** Names the weights of an epoch, which may be an earlier one: responses may still contain the name. */
  name(epoch: WeightEpoch, version: string): void {
    this.#names.set(epoch, version);
    const [oldest] = this.#names.keys();
    if (this.#names.size > NAMES_MAX && oldest !== undefined) this.#names.delete(oldest);
  }

  /** The trainer's resume. During an update it takes effect at the end: then returns why, else null. */
  resume(): string | null {
    return this.hold.resume() ? null : this.#holdReason();
  }

  pauseState(): PauseState {
    return this.hold.state(() => this.#holdReason());
  }

  /** Begins an update. One that is open is given up: a trainer that begins again does not go on with it. */
  async start(operation: EngineOperation): Promise<EngineAnswers> {
    return await this.#called(async () => {
      await this.#abandon("another one begins");
      try {
        await this.#stop();
        const { pool } = this.#options;
        const outcome = await this.#engines.send(operation);
        if (takenIn(outcome).size > 0) {
          pool.tell(pool.members, (member) => ({ kind: "begun", took: tookOf(outcome, member) }));
          this.#open = { isChanged: false };
          this.#isCutOff = false;
          await this.#keep();
        }
        return outcome;
      } finally {
        if (this.#open === null) this.#close();
      }
    });
  }

  /**
   * Carries out a part of the open update, or an update by itself.
   * @throws AppError conflict: the update began under an earlier process.
   */
  async part(operation: EngineOperation): Promise<EngineAnswers> {
    return await this.#called(() => {
      if (this.#open !== null) return this.#part(operation, this.#open);
      if (!this.#isCutOff) return this.#whole(operation);
      const problem = "a weight update was open when the sidecar ended: begin it again";
      throw new AppError("conflict", problem);
    });
  }

  /** An update of several requests is open, or was when the process before this one ended. */
  get isOpen(): boolean {
    return this.#open !== null || this.#isCutOff;
  }

  async finish(operation: EngineOperation): Promise<EngineAnswers> {
    return await this.#called(async () => {
      const outcome = await this.#engines.send(operation);
      // Refused by all: the update is still open, and can be finished in another way.
      if (outcome.answers.length > 0 && !mayHaveChanged(outcome)) return outcome;
      try {
        if (this.#open?.isChanged !== true) return outcome;
        this.#options.pool.agreement.prepare(this.#engines.next);
        const tried = await this.#engines.tried(outcome);
        const current = new Set([...takenIn(tried)].filter(({ record }) => record.update.isWhole));
        await this.#advance(current, operation, tried, "unknown");
        return tried;
      } finally {
        this.#close();
      }
    });
  }

  /** Carries out an operation that is a whole update, such as `reload_weights`. */
  async whole(operation: EngineOperation): Promise<EngineAnswers> {
    return await this.#called(() => this.#whole(operation));
  }

  /** Adapters that clients may name as the model. */
  get adapters(): ReadonlySet<string> {
    return this.#adapters.names;
  }

  /**
   * Gives up the update that is open or under way. Resolves to the names of the engines that are opened again.
   * @throws AppError conflict: there is none.
   */
  async abort(): Promise<string[]> {
    if (!this.hold.isHeld) {
      throw new AppError("conflict", "no weight update is open or under way");
    }
    this.#engines.giveUp();
    // One turn for all who want it.
    this.#aborting ??= this.#alone(() => this.#abandon("aborted by a client")).finally(() => {
      this.#aborting = null;
    });
    return await this.#aborting;
  }

  /** Call when nothing runs, before engines sleep. */
  async beforeSleep(): Promise<void> {
    this.#options.pool.tellAwake(false);
    // A successor would wake the engines of a trainer that needs their memory.
    await this.#keep();
  }

  /** Takes over an earlier process's state. Engines that it left asleep generate nothing until they are awake. */
  async restore(isAwake: boolean | null, isOpen: boolean): Promise<void> {
    this.#isCutOff = isOpen;
    this.#options.pool.tellAwake(isAwake);
    if (isAwake === false) await this.hold.pause("keep");
  }

  /** Records the canary that the trainer computed of the next weights. */
  async expect(...canary: Parameters<Agreement["expect"]>): Promise<void> {
    this.#options.pool.agreement.expect(...canary);
    await this.#keep();
  }

  /** After a wake-up: engines whose canary fails are opened again. Call when nothing runs. */
  async checkAwake(): Promise<EngineAnswers> {
    const { pool } = this.#options;
    pool.tellAwake(true);
    // A successor would wait for a wake-up that the trainer has seen answered.
    await this.#keep();
    const engines = connected(pool.members);
    const awake = engines.map((engine) => ({ ...engine, answer: { status: 200, body: null } }));
    const tried = await this.#engines.tried(outcomeOf(awake));
    const reasons = reasonsOf(tried);
    pool.tell(reasons.keys(), (member) => {
      return { kind: "reopen", reason: reasons.get(member) ?? "", hasOthers: true };
    });
    return tried;
  }

  async #whole(operation: EngineOperation): Promise<EngineAnswers> {
    let isOver = this.#open === null;
    try {
      await this.#stop();
      // Complete weights end an update that was open; an engine still has to get the end of it.
      if (this.#open !== null) await this.#engines.sendTo(this.#engines.begun, FINISH);
      const outcome = await this.#engines.send(operation);
      if (!mayHaveChanged(outcome)) return outcome;
      isOver = true;
      this.#options.pool.agreement.prepare(this.#engines.next);
      const tried = await this.#engines.tried(outcome);
      const current = takenIn(tried);
      const base = current.size > 0 ? baseAfter(operation) : "unknown";
      if (tried.failed.length === 0) this.#isCutOff = false;
      await this.#advance(current, operation, tried, base);
      return tried;
    } finally {
      if (isOver) this.#close();
    }
  }

  async #part(operation: EngineOperation, open: { isChanged: boolean }): Promise<EngineAnswers> {
    const { pool } = this.#options;
    const engines = await this.#engines.available();
    const members = engines.map(({ member }) => member);
    // At once: one that loses its connection meanwhile may come back over another before it has answered.
    const reason = "holds a part of a weight update";
    pool.tell(members, () => ({ kind: "asked", reason }));
    const outcome = await this.#engines.sendTo(engines, operation);
    pool.tell(pool.members, (member) => ({ kind: "part", took: tookOf(outcome, member) }));
    open.isChanged ||= mayHaveChanged(outcome);
    return outcome;
  }

  async changeAdapter(name: string, asked: AdapterChange): Promise<EngineAnswers> {
    return await this.#called(async () => {
      if (this.#open !== null) {
        throw new AppError("conflict", "a weight update is open: finish it before adapters change");
      }
      try {
        await this.#stop();
        return await this.#adapters.change(name, asked);
      } finally {
        this.#close();
      }
    });
  }

  /** The next epoch begins on `current`, after `operation`. `base`: how an engine that opens later gets the base weights. */
  async #advance(
    current: ReadonlySet<Member>,
    operation: EngineOperation,
    outcome: EngineAnswers,
    base: Recipe["base"],
  ): Promise<void> {
    const { pool, sidecar } = this.#options;
    const reasons = reasonsOf(outcome);
    const lost = lostIn(outcome);
    // One that was opened after the request was sent can be given the weights as one that opens later.
    if (base !== "unknown") for (const late of this.#engines.without(outcome)) lost.add(late);
    // Under an adapter the weights, and their name, are as they were.
    const isAdapter = operation.kind === "adapter";
    const name = isAdapter ? this.#names.get(sidecar.rollout.epoch) : versionIn(operation);
    if (current.size > 0 && name !== undefined) this.name(this.#engines.next, name);
    this.#begin(base, current, (member) => ({
      reason: reasons.get(member) ?? "missed a part of the weight update",
      has: lost.has(member) ? "lost" : "unknown",
    }));
    await this.#keep();
    await pool.unfence(current);
  }

  /** Begins the next epoch. */
  #begin(base: Recipe["base"], current: ReadonlySet<Member>, missedOf: MissedOf): void {
    const { pool, sidecar } = this.#options;
    pool.changedWeights(current, { base, adapters: this.#adapters.loads }, missedOf);
    sidecar.advance(this.#engines.next);
  }

  /** Ends the open update under the same epoch. Opens engines that hold a part of it again, and returns their names. */
  async #abandon(reason: string): Promise<string[]> {
    if (this.#open === null) return [];
    try {
      // An engine on which an update is open refuses to begin another.
      const outcome = await this.#engines.sendTo(this.#engines.begun, FINISH);
      const failed = new Set(outcome.failed.map(({ member }) => member));
      const { pool } = this.#options;
      const partial = pool.members.filter(
        (member) => failed.has(member) || member.record.uncertain !== null,
      );
      const why = `holds a part of a weight update: ${reason}`;
      this.#engines.reopen(partial, why, true);
      const reopened = partial.map(({ source }) => source.name);
      this.#options.notice({ kind: "abandoned", reason, reopened: reopened.join(", ") });
      return reopened;
    } finally {
      this.#close();
    }
  }

  /** Stops generation until `#close`. An engine that does not stop is opened again. */
  async #stop(): Promise<void> {
    const { members } = this.#options.pool;
    await this.hold.hold(this.#engines.signal, (busy, reason) => {
      const open = members.filter(({ worker }) => worker !== null && busy.has(worker));
      this.#engines.reopen(open, reason, false);
    });
    await this.#keep();
  }

  #close(): void {
    this.#open = null;
    this.hold.release();
    void this.#keep();
  }

  #holdReason(): string {
    const { timeoutMs } = this.#options;
    const seconds = Math.round(this.hold.heldSeconds);
    const what = this.#open === null ? "is under way" : "is open";
    const aborted = `after ${timeoutMs / 1000} s without a request, or by POST /abort_weight_update`;
    return `a weight update ${what} since ${seconds} s: generation resumes when it ends; it is aborted ${aborted}`;
  }

  /** Queues a client's call. @throws AppError queue_full: too many wait. */
  #called<T>(act: () => Promise<T>): Promise<T> {
    return this.#bound.during(() => this.#alone(act));
  }

  /** Runs requests one after the other; an update that stays open without a request for too long is abandoned. */
  #alone<T>(act: () => Promise<T>): Promise<T> {
    const turn = async () => {
      this.#cancelIdle();
      this.#engines.begin();
      try {
        return await act();
      } finally {
        this.#watchIdle();
      }
    };
    const reason = "calls that change weights are carried out one by one";
    const forWhom = "the call before it";
    const { waits } = this.#options.sidecar;
    const mayBegin = waits.begin({ what: "weight update", forWhom, reason, msMax: null });
    const done = this.#tail.then(mayBegin).then(turn);
    this.#tail = done.catch((_: AppError | Error) => undefined);
    return done;
  }

  #watchIdle(): void {
    const { later, timeoutMs } = this.#options;
    this.#cancelIdle = () => {};
    if (this.#open === null) return;
    const open = this.#open;
    this.#cancelIdle = later(() => {
      if (this.#open !== open) return;
      const reason = `no request for ${timeoutMs / 1000} s`;
      void this.#alone(() => this.#abandon(reason));
    }, timeoutMs);
  }
}

function reasonsOf({ failed }: EngineAnswers): Map<Member, string> {
  return new Map(failed.map((failure) => [failure.member, textOf(failure)]));
}

function versionIn(operation: EngineOperation): string | undefined {
  if (operation.kind === "load") return operation.version ?? undefined;
  const version: unknown = "body" in operation ? Object(operation.body).weight_version : null;
  return typeof version === "string" ? version : undefined;
}

const PATH_FIELDS = ["weights_path", "weight_dir"];

/** Whether the request contains the weights' path. Weights that a trainer sent over a network cannot be loaded again. */
function namesPath(body: unknown): boolean {
  if (typeof body !== "object" || body === null) return false;
  return Object.entries(body).some(
    ([field, value]) =>
      (PATH_FIELDS.includes(field) && typeof value === "string") || namesPath(value),
  );
}

/** The operation by which an engine that is opened later gets the weights that `operation` loaded. */
function baseAfter(operation: EngineOperation): Recipe["base"] {
  const isPath = operation.kind === "load" || ("body" in operation && namesPath(operation.body));
  return isPath ? operation : "unknown";
}
