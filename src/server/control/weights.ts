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

import type { Clock } from "../../base/clock.ts";
import { AppError } from "../../base/errors.ts";
import { type WeightEpoch, weightEpoch } from "../../base/ids.ts";
import type { PauseMode } from "../../rollout/rollout.ts";
import type { ControlRequest } from "../../rollout/worker.ts";
import {
  type AnswerLimits,
  answerOf,
  canaryRequest,
  SILENT,
  UNREACHABLE,
} from "../engine-answer.ts";
import { type Exchange, jsonResponse } from "../route.ts";
import type { Sidecar } from "../sidecar.ts";
import {
  connected,
  type Member,
  type Reachable,
  type Recipe,
  type WorkerPool,
} from "../worker-pool.ts";
import { Adapters, adapterCall } from "./adapters.ts";
import { type ControlCall, callOf } from "./control-call.ts";
import { answerTo, fanOut, isSuccess, type Outcome, outcomeOf, textOf } from "./fan-out.ts";
import { both, mayHaveChanged, OpenUpdate, type Taken, takenIn } from "./open-update.ts";
import { baseAfter } from "./recipe.ts";
import { WeightNames } from "./weight-names.ts";

export interface WeightsOptions {
  readonly sidecar: Sidecar;
  readonly pool: WorkerPool;
  /** Of the model itself: no adapter can have one of them. */
  readonly modelNames: readonly string[];
  readonly clock: Clock;
  /** Time for an engine to answer, and between calls of an open update. */
  readonly timeoutMs: number;
  /** Runs something after a while; returns what cancels it. */
  readonly later: (act: () => void, ms: number) => () => void;
  readonly notice: (notice: WeightsNotice) => void;
  /** What gives an engine the first epoch's weights. Default: those it is opened with. */
  readonly base?: Recipe["base"];
  /** An update held generation back for so many seconds. */
  readonly held?: (seconds: number) => void;
}

/** Events for the operator's log, besides the answers. */
export type WeightsNotice =
  | { readonly kind: "abandoned"; readonly reason: string; readonly reopened: string }
  /** It was updated by somebody else, or was not while the others were. */
  | { readonly kind: "stale"; readonly worker: string; readonly reason: string }
  | { readonly kind: "canary_failed"; readonly worker: string; readonly reason: string }
  /** The trainer's pause, which nobody has ended for a while. */
  | {
      readonly kind: "still_paused";
      readonly seconds: number;
      readonly unfinished: number;
      readonly reason: string;
    };

/** Time for which an update waits for an engine that is being opened again, if there is no other. */
const REOPEN_MS = 5_000;
const REOPEN_POLL_MS = 50;
/** A pause that lasts longer than an update does is logged, and again each time it has lasted twice as long. */
const LONG_PAUSE_MS = 60_000;

export interface PauseState {
  readonly is_paused: boolean;
  /** null: it runs. */
  readonly reason: string | null;
  /** Since when, s ago; null: it runs. */
  readonly paused_s: number | null;
  /** Generation resumes when the update ends. */
  readonly resumes: boolean;
}

export class WeightUpdates {
  readonly #options: WeightsOptions;
  readonly #names = new WeightNames();
  /** null: none is open. */
  #open: OpenUpdate | null = null;
  /** What gives an engine the weights of the epoch, without adapters. */
  #base: Recipe["base"];
  readonly #adapters = new Adapters();
  /** Nothing may run, since when; null: it may. */
  #heldMs: number | null = null;
  /** What follows once the weights have changed: the trainer has not paused by itself. */
  #resumes = false;
  #isAsleep = false;
  /** Since when the trainer has paused; null: it has not. */
  #pausedMs: number | null = null;
  #cancelReminder: () => void = () => {};
  /** One control request that changes weights at a time. */
  #tail: Promise<unknown> = Promise.resolve();
  /** Gives up what the request under way waits for. */
  #giveUp = new AbortController();
  #cancelIdle: () => void = () => {};
  /** Engines that did not stop for the request under way. */
  #reopened: ReadonlySet<Member> = new Set();

  constructor(options: WeightsOptions) {
    this.#options = options;
    this.#base = options.base ?? "first";
  }

  version(epoch: WeightEpoch): string {
    return this.#names.of(epoch);
  }

  get current(): string {
    return this.version(this.#options.sidecar.rollout.epoch);
  }

  /** The trainer, or an engine, has named the current weights. */
  get isNamed(): boolean {
    return this.#names.given(this.#options.sidecar.rollout.epoch) !== null;
  }

  /** The engines' memory was freed, and the rollout is paused until they have it again. */
  get isAsleep(): boolean {
    return this.#isAsleep;
  }

  /** After `pause`, before the engines are sent to sleep. */
  slept(): void {
    this.#isAsleep = true;
  }

  /** An update is open or under way. */
  get isUpdating(): boolean {
    return this.#heldMs !== null;
  }

  nameUnlessNamed(version: string): void {
    if (!this.isNamed) this.rename(version);
  }

  /**
   * The engines have got other weights by no request of ours: the next epoch begins with those that have them, and
   * without the others. Not during an update.
   */
  begin(version: string, current: ReadonlySet<Member>, reasonOf: (member: Member) => string): void {
    const { pool, sidecar } = this.#options;
    this.#names.give(this.#next, version);
    // An engine that restarts has its first weights again, and only the trainer has these.
    if ([...current].some(({ source }) => source.keepsWeights)) this.#base = "unknown";
    const recipe = { base: this.#base, adapters: this.#adapters.loads };
    pool.changedWeights({ current, lost: new Set(), recipe, reasonOf });
    sidecar.advance(this.#next);
    pool.restore(current);
  }

  rename(version: string): void {
    this.#names.give(this.#options.sidecar.rollout.epoch, version);
  }

  /**
   * The trainer's pause, which outlasts an update under way.
   * @throws AppError conflict: it was resumed before it took hold, or waits for what an update holds back.
   */
  async pause(mode: PauseMode): Promise<void> {
    if (this.#heldMs !== null && mode === "wait") {
      throw new AppError("conflict", "the weights are being updated: nothing can end meanwhile");
    }
    this.#resumes = false;
    if (this.#pausedMs === null) {
      this.#pausedMs = this.#nowMs;
      this.#remind(LONG_PAUSE_MS);
    }
    if (await this.#options.sidecar.rollout.pause(mode)) return;
    throw new AppError("conflict", "resumed before the pause had taken hold");
  }

  /** The trainer's; while an update is under way it takes effect at its end: then why, else null. */
  resume(): string | null {
    this.#isAsleep = false;
    this.#pausedMs = null;
    this.#cancelReminder();
    if (this.#heldMs === null) {
      this.#options.sidecar.rollout.resume();
      return null;
    }
    this.#resumes = true;
    return this.#holdReason();
  }

  pauseState(): PauseState {
    const { rollout } = this.#options.sidecar;
    const secondsSince = (ms: number) => Math.floor((this.#nowMs - ms) / 1000);
    if (this.#heldMs !== null) {
      const paused_s = secondsSince(this.#pausedMs ?? this.#heldMs);
      return { is_paused: true, reason: this.#holdReason(), paused_s, resumes: this.#resumes };
    }
    const mode = rollout.pauseMode;
    if (mode === null) return { is_paused: false, reason: null, paused_s: null, resumes: false };
    const paused_s = secondsSince(this.#pausedMs ?? this.#nowMs);
    return { is_paused: true, reason: `paused with mode ${mode}`, paused_s, resumes: false };
  }

  #remind(afterMs: number): void {
    this.#cancelReminder = this.#options.later(() => {
      if (this.#pausedMs === null) return;
      const seconds = Math.floor((this.#nowMs - this.#pausedMs) / 1000);
      const { unfinished } = this.#options.sidecar.rollout;
      const reason = "POST /resume ends it";
      this.#options.notice({ kind: "still_paused", seconds, unfinished, reason });
      this.#remind(2 * afterMs);
    }, afterMs);
  }

  async start(exchange: Exchange): Promise<Response> {
    const call = await callOf(exchange);
    return await this.#alone(async () => {
      try {
        await this.#hold();
        const outcome = await this.#send(call);
        if (takenIn(outcome).size > 0) {
          if (this.#open === null) this.#open = new OpenUpdate(outcome, this.#nowMs);
          else this.#open.again(outcome);
        }
        return answerTo(call, outcome);
      } finally {
        if (this.#open === null) this.#close();
      }
    });
  }

  /** Part of an open update, or an update by itself. */
  async update(exchange: Exchange): Promise<Response> {
    const call = await callOf(exchange);
    return await this.#alone(async () => {
      if (this.#open === null) return await this.#whole(call);
      const outcome = await this.#send(call);
      this.#open.part(outcome);
      return answerTo(call, outcome);
    });
  }

  async finish(exchange: Exchange): Promise<Response> {
    const call = await callOf(exchange);
    return await this.#alone(async () => {
      const outcome = await this.#send(call);
      // Refused by all: the update is still open, and can be finished in another way.
      if (outcome.answers.length > 0 && !mayHaveChanged(outcome)) return answerTo(call, outcome);
      try {
        if (this.#open?.isChanged !== true) return answerTo(call, outcome);
        const tried = await this.#tried(outcome);
        const current = both(this.#open.taken, takenIn(tried));
        await this.#advance(current, { call, base: "unknown", outcome: tried });
        return answerTo(call, tried);
      } finally {
        this.#close();
      }
    });
  }

  /** A request that changes the weights by itself, such as `reload_weights`. */
  async whole(exchange: Exchange): Promise<Response> {
    const call = await callOf(exchange);
    return await this.#alone(() => this.#whole(call));
  }

  /** Loads an adapter into every engine, or drops it. */
  async adapter(exchange: Exchange): Promise<Response> {
    const call = adapterCall(await callOf(exchange));
    return await this.#alone(() => this.#changeAdapter(call));
  }

  /** Adapters that clients may name as the model. */
  get adapters(): ReadonlySet<string> {
    return this.#adapters.names;
  }

  /** Gives up the update that is open or under way. @throws AppError conflict: there is none. */
  async abort(): Promise<Response> {
    if (this.#heldMs === null) {
      throw new AppError("conflict", "no weight update is open or under way");
    }
    this.#giveUp.abort();
    return await this.#alone(async () => {
      const reopened = await this.#abandon("aborted by a client");
      return jsonResponse({ status: "aborted", reopened });
    });
  }

  /** Engines that cannot generate with what they have are fenced. Call when nothing runs. */
  async checkAwake(): Promise<Outcome> {
    const { pool } = this.#options;
    const engines = connected(pool.members);
    const there = engines.map((one) => ({ ...one, answer: { status: 200, body: null } }));
    const tried = await this.#tried(outcomeOf(there));
    const reasons = reasonsOf(tried);
    pool.spoiled(new Set(reasons.keys()), (member) => reasons.get(member) ?? "");
    return tried;
  }

  async #whole(call: ControlCall): Promise<Response> {
    let isOver = this.#open === null;
    try {
      await this.#hold();
      // Complete weights end an update that was open; an engine still has to get the end of it.
      if (this.#open !== null) await this.#end(this.#begunBy(this.#open));
      const outcome = await this.#send(call);
      if (!mayHaveChanged(outcome)) return answerTo(call, outcome);
      isOver = true;
      const tried = await this.#tried(outcome);
      const current = takenIn(tried);
      const base = current.size > 0 ? baseAfter(this.#requestOf(call)) : "unknown";
      await this.#advance(current, { call, base, outcome: tried });
      return answerTo(call, tried);
    } finally {
      if (isOver) this.#close();
    }
  }

  async #changeAdapter(call: ControlCall): Promise<Response> {
    if (this.#open !== null) {
      throw new AppError("conflict", "a weight update is open: finish it before adapters change");
    }
    const { sidecar, pool, modelNames } = this.#options;
    try {
      await this.#hold();
      return await this.#adapters.change(call, {
        sidecar,
        modelNames,
        engines: () => this.#engines(),
        send: (engines, one) => fanOut(engines, () => this.#requestOf(one), this.#limits),
        tried: (outcome, adapter) => this.#tried(outcome, adapter),
        advance: (current, one, outcome) =>
          this.#advance(current, { call: one, base: this.#base, outcome, keepsName: true }),
        dropLost: ({ failed }) => {
          const lost = new Set(failed.filter(isLost).map(({ member }) => member));
          pool.reopen(lost, "has not answered about an adapter");
        },
      });
    } finally {
      this.#close();
    }
  }

  get #next(): WeightEpoch {
    return weightEpoch(this.#options.sidecar.rollout.epoch + 1);
  }

  get #nowMs(): number {
    return this.#options.clock.nowMs();
  }

  get #limits(): AnswerLimits {
    const { timeoutMs: msMax, later, sidecar } = this.#options;
    return { msMax, later, sidecar, signal: this.#giveUp.signal };
  }

  #requestOf(call: ControlCall): ControlRequest {
    return { ...call, nextEpoch: this.#next };
  }

  async #send(call: ControlCall): Promise<Outcome> {
    const engines = await this.#engines();
    const request = this.#requestOf(call);
    return await fanOut(engines, () => request, this.#limits);
  }

  /**
   * If none is available, one may be soon: a failed engine is opened again. So are those that did not
   * stop for this update.
   */
  async #engines(): Promise<Reachable[]> {
    const { pool, later, clock } = this.#options;
    const endMs = clock.nowMs() + REOPEN_MS;
    for (;;) {
      const engines = connected(pool.members);
      const isComplete = [...this.#reopened].every(({ worker }) => worker !== null);
      if ((engines.length > 0 && isComplete) || clock.nowMs() >= endMs) return engines;
      if (this.#giveUp.signal.aborted) return engines;
      await new Promise<void>((resolve) => {
        later(resolve, REOPEN_POLL_MS);
      });
    }
  }

  /** Engines that took it, as far as they generate; a canary's result replaces their answer. */
  async #tried(outcome: Outcome, adapter: string | null = null): Promise<Outcome> {
    const request = canaryRequest(this.#next, adapter);
    const answers = await Promise.all(
      outcome.answers.map(async (one) => {
        if (!isSuccess(one.answer)) return one;
        const answer = await answerOf(one.worker, request, this.#limits);
        if (isSuccess(answer)) return one;
        const failed = { ...one, answer };
        const worker = one.member.source.name;
        this.#options.notice({ kind: "canary_failed", worker, reason: textOf(failed) });
        return failed;
      }),
    );
    return outcomeOf(answers);
  }

  async #advance(
    taken: Taken,
    about: { call: ControlCall; base: Recipe["base"]; outcome: Outcome; keepsName?: boolean },
  ): Promise<void> {
    const { pool, sidecar } = this.#options;
    const { call, base, outcome } = about;
    const current = new Set(taken.keys());
    const reasons = reasonsOf(outcome);
    // Under an adapter the weights, and their name, are as they were.
    const kept = about.keepsName === true ? this.#names.given(sidecar.rollout.epoch) : null;
    if (current.size > 0) this.#names.give(this.#next, versionIn(call.body) ?? kept);
    this.#base = base;
    pool.changedWeights({
      current,
      lost: new Set(outcome.failed.filter(isLost).map(({ member }) => member)),
      recipe: { base, adapters: this.#adapters.loads },
      reasonOf: (member) => reasons.get(member) ?? "missed a part of the weight update",
    });
    sidecar.advance(this.#next);
    await pool.unfence(current);
  }

  /** The epoch stays. Engines that hold a part of it are opened again; returns their names. */
  async #abandon(reason: string): Promise<string[]> {
    const open = this.#open;
    if (open === null) return [];
    try {
      // An engine on which an update is open refuses to begin another.
      const begun = this.#begunBy(open);
      const outcome = await this.#end(begun);
      const failed = new Set(outcome.failed.map(({ member }) => member));
      const spoiled = new Set(
        begun
          .map(({ member }) => member)
          .filter((member) => failed.has(member) || open.changed.has(member)),
      );
      this.#options.pool.spoiled(spoiled, () => `holds a part of a weight update: ${reason}`);
      const reopened = [...spoiled].map(({ source }) => source.name);
      this.#options.notice({ kind: "abandoned", reason, reopened: reopened.join(", ") });
      return reopened;
    } finally {
      this.#close();
    }
  }

  #begunBy({ begun }: OpenUpdate): Reachable[] {
    return connected(this.#options.pool.members).filter(
      ({ member, worker }) => begun.get(member) === worker,
    );
  }

  async #end(engines: readonly Reachable[]): Promise<Outcome> {
    const call: ControlCall = {
      method: "POST",
      path: "/finish_weight_update",
      query: {},
      body: {},
    };
    return await fanOut(engines, () => this.#requestOf(call), this.#limits);
  }

  /**
   * Nothing runs from here to `#close`, nor afterwards if the trainer has paused by itself, until it resumes. An engine
   * that does not stop is opened again.
   * @throws AppError deadline_exceeded: the trainer's own pause waits for requests that do not end.
   */
  async #hold(): Promise<void> {
    const { rollout } = this.#options.sidecar;
    if (this.#heldMs === null) {
      this.#resumes = rollout.pauseMode === null;
      this.#heldMs = this.#nowMs;
    }
    const mode = rollout.pauseMode ?? "keep";
    // The trainer's own pause may not have taken hold yet.
    const quiet = rollout.pause(mode);
    if (await this.#inTime(quiet)) return;
    const busy = new Set(rollout.busyWorkers);
    const { pool, timeoutMs } = this.#options;
    const reason = `has not stopped for a weight update within ${timeoutMs / 1000} s`;
    if (mode !== "keep" || this.#giveUp.signal.aborted) {
      const names = [...busy].map(({ name }) => name).join(", ");
      const what = this.#giveUp.signal.aborted ? "the update was aborted" : reason;
      throw new AppError("deadline_exceeded", `${names}: ${what}; nothing has changed`);
    }
    const members = pool.members.filter(({ worker }) => worker !== null && busy.has(worker));
    this.#reopened = new Set(members);
    pool.reopen(this.#reopened, reason);
    await quiet;
  }

  /** false: the deadline passed before, or it was given up. */
  async #inTime(done: Promise<unknown>): Promise<boolean> {
    const { later, timeoutMs } = this.#options;
    const { signal } = this.#giveUp;
    const { promise, resolve } = Promise.withResolvers<false>();
    const late = () => resolve(false);
    const cancel = later(late, timeoutMs);
    signal.addEventListener("abort", late, { once: true });
    try {
      return await Promise.race([done.then(() => true), promise]);
    } finally {
      cancel();
      signal.removeEventListener("abort", late);
    }
  }

  #close(): void {
    this.#open = null;
    if (this.#heldMs === null) return;
    this.#options.held?.((this.#nowMs - this.#heldMs) / 1000);
    this.#heldMs = null;
    if (this.#resumes) this.#options.sidecar.rollout.resume();
  }

  #holdReason(): string {
    const { timeoutMs } = this.#options;
    const seconds = Math.round((this.#nowMs - (this.#heldMs ?? 0)) / 1000);
    const what = this.#open === null ? "is under way" : "is open";
    return `a weight update ${what} since ${seconds} s: generation resumes when it ends; it is aborted after ${timeoutMs / 1000} s without a request, or by POST /abort_weight_update`;
  }

  /** One after the other; an update that is left open without a request for too long is abandoned. */
  #alone(act: () => Promise<Response>): Promise<Response> {
    const turn = async () => {
      this.#cancelIdle();
      this.#giveUp = new AbortController();
      this.#reopened = new Set();
      try {
        return await act();
      } finally {
        this.#watchIdle();
      }
    };
    const done = this.#tail.then(turn, turn);
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
      void this.#alone(async () => jsonResponse(await this.#abandon(reason)));
    }, timeoutMs);
  }
}

/** The engine is not there any more, or its state is unknown: it is opened again. */
function isLost({ answer }: { answer: { status: number } }): boolean {
  return answer.status === UNREACHABLE || answer.status === SILENT;
}

function reasonsOf({ failed }: Outcome): Map<Member, string> {
  return new Map(failed.map((one) => [one.member, textOf(one)]));
}

function versionIn(body: unknown): string | null {
  if (typeof body !== "object" || body === null || !("weight_version" in body)) return null;
  return typeof body.weight_version === "string" ? body.weight_version : null;
}
