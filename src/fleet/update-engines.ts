// The engines that a weight update is sent to: which can be reached, what they answer, and whether they generate with the
// weights that they have then. An update that is given up waits for none of them.

import type { Clock } from "../core/base/clock.ts";
import { type WeightEpoch, weightEpoch } from "../core/base/ids.ts";
import type { EngineOperation } from "../core/rollout/operation.ts";
import type { Worker } from "../core/rollout/worker.ts";
import { type AnswerLimits, answerOf, type FleetHost } from "./engine-answer.ts";
import { fanOut, isSuccess, type Outcome, outcomeOf, textOf } from "./fan-out.ts";
import { WAKE } from "./give-weights.ts";
import { connected, type Member, type Reachable, type WorkerPool } from "./pool.ts";

export interface UpdateEnginesOptions {
  readonly sidecar: FleetHost;
  readonly pool: WorkerPool;
  readonly clock: Clock;
  readonly timeoutMs: number;
  readonly later: (act: () => void, ms: number) => () => void;
  readonly notice: (notice: CanaryFailed) => void;
}

/** The engine has taken the weights, and does not generate with them, or not as the others do. */
export interface CanaryFailed {
  readonly kind: "canary_failed";
  readonly worker: string;
  readonly reason: string;
}

/** Time for which an update waits for an engine that is being opened again, if there is no other. */
const REOPEN_MS = 5_000;
const REOPEN_POLL_MS = 50;

export class UpdateEngines {
  readonly #options: UpdateEnginesOptions;
  /** Gives up what the request under way waits for. */
  #giveUp = new AbortController();
  /** Engines that did not stop for the request under way. */
  #reopened: ReadonlySet<Member> = new Set();

  constructor(options: UpdateEnginesOptions) {
    this.#options = options;
  }

  get next(): WeightEpoch {
    return weightEpoch(this.#options.sidecar.rollout.epoch + 1);
  }

  /** Aborted once the request under way is given up. */
  get signal(): AbortSignal {
    return this.#giveUp.signal;
  }

  begin(): void {
    this.#giveUp = new AbortController();
    this.#reopened = new Set();
  }

  giveUp(): void {
    this.#giveUp.abort();
  }

  /** Reopens the busy engines; `available` waits for them. */
  reopen(busy: ReadonlySet<Worker>, reason: string): void {
    const { pool } = this.#options;
    this.#reopened = new Set(
      pool.members.filter(({ worker }) => worker !== null && busy.has(worker)),
    );
    pool.tell(this.#reopened, () => ({ kind: "reopen", reason }));
  }

  async send(operation: EngineOperation): Promise<Outcome> {
    return await this.sendTo(await this.available(), operation);
  }

  async sendTo(engines: readonly Reachable[], operation: EngineOperation): Promise<Outcome> {
    const asked = { operation, nextEpoch: this.next };
    return await fanOut(engines, () => asked, this.#limits);
  }

  /**
   * If none is available, one may be soon: a failed engine is opened again. So are those that did not stop for this
   * update.
   */
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

  /** Engines that are there, and that the request of `outcome` was not sent to. */
  without({ answers }: Outcome): Member[] {
    const asked = new Set(answers.map(({ worker }) => worker));
    const engines = connected(this.#options.pool.members);
    return engines.filter(({ worker }) => !asked.has(worker)).map(({ member }) => member);
  }

  /** Before weights change for the first time: how much engines that have the same ones differ. Fences none of them. */
  async compareOnce(): Promise<void> {
    const { pool } = this.#options;
    if (pool.canaries.hasCompared) return;
    const asked = { operation: { kind: "canary", adapter: null } as const, nextEpoch: this.next };
    const answers = connected(pool.members).map(async ({ member, worker }) => {
      const { body } = await answerOf(worker, asked, this.#limits);
      return { name: member.source.name, body };
    });
    pool.canaries.compare(await Promise.all(answers));
  }

  /** Engines that took it, as far as they generate; a canary's result replaces their answer. */
  async tried(outcome: Outcome, adapter: string | null = null): Promise<Outcome> {
    const operation = { kind: "canary", adapter } as const;
    const asked = { operation, nextEpoch: this.next };
    const { isAwake } = this.#options.pool;
    const tried = await Promise.all(
      outcome.answers.map(async (one) => {
        if (!isSuccess(one.answer)) return { one, canary: one.answer };
        const canary = await answerOf(one.worker, asked, this.#limits);
        if (isAwake !== true || Object(canary.body).asleep !== true) return { one, canary };
        // It came while the others were being woken.
        await answerOf(one.worker, { operation: WAKE, nextEpoch: this.next }, this.#limits);
        return { one, canary: await answerOf(one.worker, asked, this.#limits) };
      }),
    );
    const good = tried.filter(({ one, canary }) => isSuccess(one.answer) && isSuccess(canary));
    const named = good.map(({ one, canary }) => ({
      name: one.member.source.name,
      body: canary.body,
    }));
    // An adapter's canary is another than the model's.
    const problems =
      adapter === null ? this.#options.pool.canaries.compare(named) : good.map(() => null);
    for (const [i, { canary }] of good.entries()) {
      if (isAwake === true && Object(canary.body).asleep === true) problems[i] = "it sleeps";
    }
    const answers = tried.map((each) => {
      const { one, canary } = each;
      const problem = problems[good.indexOf(each)] ?? null;
      if (isSuccess(canary) && problem === null) return one;
      const answer = problem === null ? canary : { status: 500, body: { error: problem } };
      const failed = { ...one, answer };
      if (!isSuccess(one.answer)) return failed;
      const worker = one.member.source.name;
      this.#options.notice({ kind: "canary_failed", worker, reason: textOf(failed) });
      return failed;
    });
    return outcomeOf(answers);
  }

  get #limits(): AnswerLimits {
    const { timeoutMs: msMax, later, sidecar } = this.#options;
    return { msMax, later, sidecar, signal: this.#giveUp.signal };
  }
}
