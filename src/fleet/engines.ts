// Sends an operation to one engine or to all. Every call ends: by the answer, a failure, a deadline or an abort; all operations
// pass here, so that nothing waits for an engine that never answers. Here is also what the engines' answers mean together, and
// the test whether engines that took new weights generate with them.

import type { Clock, Later } from "../core/base/clock.ts";
import { AppError, errorText } from "../core/base/errors.ts";
import { type WeightEpoch, type WorkerId, weightEpoch } from "../core/base/ids.ts";
import type { RolloutReader } from "../core/rollout/events.ts";
import {
  type ControlAnswer,
  type EngineOperation,
  operationName,
} from "../core/rollout/operation.ts";
import type { Rollout } from "../core/rollout/rollout.ts";
import type { EngineWorker, OpenOptions } from "../core/rollout/worker.ts";
import type { Agreement } from "./agreement.ts";
import type { MemberEvent, MemberRecord, MemberState, Took } from "./member.ts";
import type { Waits } from "./waits.ts";

export interface WorkerSource {
  readonly name: string;
  /**
   * true: the engine is a server of its own, which keeps its weights across connections. false: it is
   * opened with the weights that the sidecar began with.
   */
  readonly keepsWeights: boolean;
  /** @throws AppError: the engine cannot be reached, or is of another kind or model. */
  open(options: OpenOptions): Promise<EngineWorker>;
}

/** An engine of the fleet: where it is opened, and its record. Only the pool writes to it. */
export class PoolMember {
  readonly source: WorkerSource;
  readonly workerId: WorkerId;
  /** The only place that says which weights the engine has. */
  record: MemberRecord;
  /** Connection to the engine and its control plane; null: it is down. */
  worker: EngineWorker | null = null;
  /** The worker being opened: nothing else uses it before it serves or is fenced. null: none. */
  candidate: EngineWorker | null = null;
  opening: Promise<unknown> = Promise.resolve(null);

  constructor(source: WorkerSource, workerId: WorkerId, record: MemberRecord) {
    this.source = source;
    this.workerId = workerId;
    this.record = record;
  }

  get state(): MemberState {
    return this.record.state;
  }

  /** Reason why the engine does not serve; null: it serves. */
  get reason(): string | null {
    return this.record.reason;
  }
}

export type Member = Readonly<Omit<PoolMember, "candidate" | "opening">>;

export interface Reachable {
  readonly member: Member;
  readonly worker: EngineWorker;
}

export function connected(members: readonly Member[]): Reachable[] {
  return members.flatMap((member) =>
    member.worker === null ? [] : [{ member, worker: member.worker }],
  );
}

/** The members with an open connection, in order. @throws AppError no_worker: there is none. */
export function reachable(members: readonly Member[]): Reachable[] {
  const engines = connected(members);
  if (engines.length === 0) throw new AppError("no_worker", "no worker can be reached");
  return engines;
}

/** The engine could not be reached, or the connection ended before the answer: see ControlAnswer. */
export const UNREACHABLE = 502;
/** The engine has not answered in time: whether the operation was carried out is unknown. */
export const SILENT = 504;
/** After such an answer the engine is opened again: it is unreachable, its state is unknown, or it has no room now (503). */
export function isUnavailable({ status }: ControlAnswer): boolean {
  return status === UNREACHABLE || status === SILENT || status === 503;
}

/** What the fleet needs of the sidecar. It never sees requests or clients. */
export interface FleetHost {
  readonly rollout: Rollout;
  readonly waits: Waits;
  /** Returns the function that removes the observer. */
  observe(observer: FleetObserver): () => void;
  /** Begins the next weight epoch. */
  advance(epoch: WeightEpoch): void;
  /** Unfinished requests of the adapter. */
  unfinishedOf(adapter: string): number;
}

type FleetObserver = Pick<RolloutReader, "workerFailed" | "stats" | "advanced">;

/** How engines are asked. `nextEpoch`: the epoch that an operation's new weights would have. */
export interface AskOptions {
  readonly nextEpoch: WeightEpoch;
  readonly msMax: number;
  readonly later: Later;
  readonly sidecar: FleetHost;
  /** Ends the wait for the answer when it aborts. */
  readonly signal?: AbortSignal;
}

/** Asks one engine. Never rejects: every failure becomes an answer with a status and an error. */
export async function answerOf(
  worker: EngineWorker,
  operation: EngineOperation,
  { nextEpoch, msMax, later, sidecar, signal }: AskOptions,
): Promise<ControlAnswer> {
  const { promise, resolve } = Promise.withResolvers<ControlAnswer>();
  const failed = (status: number, error: string) => resolve({ status, body: { error } });
  const isCanary = operation.kind === "canary";
  const hasAnswered = sidecar.waits.begin({
    what: operationName(operation),
    forWhom: `engine ${worker.workerId}`,
    reason: isCanary ? "it has not generated the canary's tokens" : "it has not answered",
    msMax,
  });
  const cancel = later(() => failed(SILENT, `no answer within ${msMax / 1000} s`), msMax);
  const workerFailed = (failedWorker: EngineWorker, message: string) => {
    if (failedWorker === worker) failed(UNREACHABLE, message);
  };
  const unobserve = sidecar.observe({ workerFailed });
  const giveUp = () => failed(SILENT, "given up before it had answered");
  signal?.addEventListener("abort", giveUp);
  try {
    if (signal?.aborted) giveUp();
    else {
      const answered = worker.perform(operation, nextEpoch);
      answered.then(resolve, (error: unknown) => failed(500, errorText(error)));
    }
    return await promise;
  } finally {
    hasAnswered();
    cancel();
    unobserve();
    signal?.removeEventListener("abort", giveUp);
  }
}

export const WAKE: EngineOperation = { kind: "wake", tags: [] };
export const MODEL_CANARY: EngineOperation = { kind: "canary", adapter: null };

const REASON_CHARACTERS = 500;

export function reasonOf(body: unknown): string {
  const { error = body } = Object(body);
  const { message = error } = Object(error);
  const text = typeof message === "string" ? message : JSON.stringify(message);
  return (text ?? "no reason").slice(0, REASON_CHARACTERS);
}

export interface EngineAnswer {
  readonly member: Member;
  readonly worker: EngineWorker;
  readonly answer: ControlAnswer;
}

export interface EngineAnswers {
  readonly answers: readonly EngineAnswer[];
  readonly failed: readonly EngineAnswer[];
}

/** Limits how many calls of clients are under way at the same time. */
export class CallBound {
  readonly #max: number;
  readonly #what: string;
  #calls = 0;

  /** `what`: the words after the number of calls in a refusal: "to engines are under way". */
  constructor(max: number, what: string) {
    this.#max = max;
    this.#what = what;
  }

  /** @throws AppError queue_full; what `act` throws. */
  async during<T>(act: () => Promise<T>): Promise<T> {
    if (this.#calls >= this.#max) {
      const message = `${this.#max} calls ${this.#what}, the server's maximum: try again when they have ended`;
      throw new AppError("queue_full", message);
    }
    this.#calls += 1;
    try {
      return await act();
    } finally {
      this.#calls -= 1;
    }
  }
}

/** Asks each engine what `operationOf` returns for its index, and waits for all answers. */
export async function fanOut(
  engines: readonly Reachable[],
  operationOf: (index: number) => EngineOperation,
  options: AskOptions,
): Promise<EngineAnswers> {
  const answers = engines.map(async ({ member, worker }, index) => ({
    member,
    worker,
    answer: await answerOf(worker, operationOf(index), options),
  }));
  return outcomeOf(await Promise.all(answers));
}

export function outcomeOf(answers: readonly EngineAnswer[]): EngineAnswers {
  return { answers, failed: answers.filter(({ answer }) => !isSuccess(answer)) };
}

export function isSuccess({ status }: ControlAnswer): boolean {
  return status >= 200 && status < 300;
}

/** What the request did to the engine. One that was opened again since has lost its effect, and counts as untouched. */
export function tookOf({ answers }: EngineAnswers, member: Member): Took {
  const one = answers.find((answer) => answer.member === member);
  if (one === undefined || one.worker !== member.worker || !mayHaveTaken(one.answer)) return "none";
  return isSuccess(one.answer) ? "took" : "touched";
}

/** Engines that carried out the request. */
export function takenIn(outcome: EngineAnswers): Set<Member> {
  const members = outcome.answers.map(({ member }) => member);
  return new Set(members.filter((member) => tookOf(outcome, member) === "took"));
}

/** Whether any engine carried out the request, failed in the middle of it, or may have done either. */
export function mayHaveChanged({ answers }: EngineAnswers): boolean {
  return answers.some(({ answer }) => mayHaveTaken(answer));
}

/** Engines that became unreachable, or whose state is unknown: they are opened again. */
export function lostIn({ failed }: EngineAnswers): Set<Member> {
  const lost = failed.filter(({ answer }) => isUnavailable(answer));
  return new Set(lost.map(({ member }) => member));
}

function mayHaveTaken({ status }: ControlAnswer): boolean {
  return status < 400 || status >= 500;
}

export function textOf({ member, answer }: EngineAnswer): string {
  return `${member.source.name} answered ${answer.status}: ${reasonOf(answer.body)}`;
}

/** The part of the pool that an update uses. */
interface UpdatedPool {
  readonly members: readonly Member[];
  readonly agreement: Agreement;
  readonly isAwake: boolean | null;
  tell(members: Iterable<Member>, eventOf: (member: Member) => MemberEvent): void;
}

/** Clock and limits of an update. `timeoutMs` limits an engine's answer, and the pause between two calls of an open update. */
export interface UpdateTimes {
  readonly sidecar: FleetHost;
  readonly clock: Clock;
  readonly timeoutMs: number;
  readonly later: Later;
}

export interface UpdateEnginesOptions extends UpdateTimes {
  readonly pool: UpdatedPool;
  readonly notice: (notice: CanaryFailed) => void;
}

/** The engine took the weights, but its canary failed: it does not generate, or not as the others do. */
export interface CanaryFailed {
  readonly kind: "canary_failed";
  readonly worker: string;
  readonly reason: string;
}

/** Time for which an update waits for engines that are being opened again: see `available`. */
const REOPEN_MS = 5_000;
const REOPEN_POLL_MS = 50;

export class UpdateEngines {
  readonly #options: UpdateEnginesOptions;
  /** Ends the waits of the current request. */
  #giveUp = new AbortController();
  /** Engines that were opened again for the current request. */
  readonly #reopened = new Set<Member>();

  constructor(options: UpdateEnginesOptions) {
    this.#options = options;
  }

  get next(): WeightEpoch {
    return weightEpoch(this.#options.sidecar.rollout.epoch + 1);
  }

  /** Aborted once the current request is given up. */
  get signal(): AbortSignal {
    return this.#giveUp.signal;
  }

  begin(): void {
    this.#giveUp = new AbortController();
    this.#reopened.clear();
  }

  giveUp(): void {
    this.#giveUp.abort();
  }

  /** Opens the engines again; `available` waits for them. `hasOthers`: as in MemberEvent. */
  reopen(members: readonly Member[], reason: string, hasOthers: boolean): void {
    for (const member of members) this.#reopened.add(member);
    this.#options.pool.tell(members, () => ({ kind: "reopen", reason, hasOthers }));
  }

  async send(operation: EngineOperation): Promise<EngineAnswers> {
    return await this.sendTo(await this.available(), operation);
  }

  async sendTo(engines: readonly Reachable[], operation: EngineOperation): Promise<EngineAnswers> {
    return await fanOut(engines, () => operation, this.#asking);
  }

  /** The connected engines. Waits, within a limit, until there is one, and until those that `reopen` closed are back. */
  async available(): Promise<Reachable[]> {
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

  /** Engines on which an update of several requests is still open. */
  get begun(): Reachable[] {
    return connected(this.#options.pool.members).filter(
      ({ member }) => member.record.update.isBegun,
    );
  }

  /** The connected engines that the request was not sent to. */
  without({ answers }: EngineAnswers): Member[] {
    const recipients = new Set(answers.map(({ worker }) => worker));
    const engines = connected(this.#options.pool.members);
    return engines.filter(({ worker }) => !recipients.has(worker)).map(({ member }) => member);
  }

  /** Has each engine that took the request generate a canary: where that fails, the failure replaces the engine's answer. */
  async tried(outcome: EngineAnswers, adapter: string | null = null): Promise<EngineAnswers> {
    const { agreement } = this.#options.pool;
    const taken = outcome.answers.filter(({ answer }) => isSuccess(answer));
    const trials = await Promise.all(
      taken.map(async (one) => ({ one, canary: await this.#canaryOf(one.worker, adapter) })),
    );
    const canaries = trials.map(({ one, canary }) => {
      return { name: one.member.source.name, body: canary.body };
    });
    // An adapter's canary is another than the model's.
    const differences = adapter === null ? agreement.compare(canaries) : [];
    const failures = new Map<EngineAnswer, EngineAnswer>();
    for (const [i, { one, canary }] of trials.entries()) {
      const problem = this.#isAsleep(canary) ? "it sleeps" : (differences[i] ?? null);
      if (isSuccess(canary) && problem === null) continue;
      const answer = isSuccess(canary) ? { status: 500, body: { error: problem } } : canary;
      const failed = { ...one, answer };
      failures.set(one, failed);
      const worker = one.member.source.name;
      this.#options.notice({ kind: "canary_failed", worker, reason: textOf(failed) });
    }
    return outcomeOf(outcome.answers.map((one) => failures.get(one) ?? one));
  }

  /** An engine that came while the others were being woken is woken first. */
  async #canaryOf(worker: EngineWorker, adapter: string | null): Promise<ControlAnswer> {
    const ask = (operation: EngineOperation) => answerOf(worker, operation, this.#asking);
    const canary = await ask({ kind: "canary", adapter });
    if (!this.#isAsleep(canary)) return canary;
    await ask(WAKE);
    return await ask({ kind: "canary", adapter });
  }

  #isAsleep({ body }: ControlAnswer): boolean {
    return this.#options.pool.isAwake === true && Object(body).asleep === true;
  }

  get #asking(): AskOptions {
    const { timeoutMs: msMax, later, sidecar } = this.#options;
    return { nextEpoch: this.next, msMax, later, sidecar, signal: this.#giveUp.signal };
  }
}
