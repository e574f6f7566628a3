// One seed: a rollout under the faults of its plan, compared with an undisturbed one. Faults come first; then everything
// heals, the rollout must end, and every engine must serve again.

import { errorText } from "../../../src/core/base/errors.ts";
import { collect, type Verdict } from "./client.ts";
import type { Fleet } from "./fleet.ts";
import type { Oracle, Trainer } from "./oracle.ts";
import type { ChaosKind, ChaosPlan, PlannedFault } from "./plan.ts";
import { WEIGHTS, type WeightsName } from "./response-line.ts";

const RECOVERY_MS_MAX = 60_000;
const UPDATE_MS_MAX = 60_000;
const POLL_MS = 30;
/** Time without a new token after which the next fault begins, whatever its share. */
const STILL_MS = 3_000;

export interface SeedOutcome {
  readonly plan: ChaosPlan;
  /** Planned faults that began before the rollout ended. */
  readonly faults: readonly ChaosKind[];
  readonly responses: number;
  readonly tokens: number;
  readonly verdict: Verdict;
  readonly isRight: boolean;
}

export interface ChaosBed {
  readonly fleet: Fleet;
  readonly oracle: Oracle;
  readonly updates: WeightUpdater;
  /** Faults of earlier rollouts that are not over. */
  readonly pending: Set<Promise<void>>;
}

export class WeightUpdater implements Trainer {
  readonly #fleet: Fleet;
  readonly #oracle: Oracle;
  /** Weights of the fleet. */
  current: WeightsName = WEIGHTS[0];

  constructor(fleet: Fleet, oracle: Oracle) {
    this.#fleet = fleet;
    this.#oracle = oracle;
  }

  /** Repeats the update until an engine has taken it. */
  async next(): Promise<void> {
    const next = this.current === "a" ? "b" : "a";
    const { path, body } = this.#oracle.updateTo(next);
    for (const endMs = performance.now() + UPDATE_MS_MAX; performance.now() < endMs; ) {
      if ((await this.#fleet.ask(path, body, UPDATE_MS_MAX)) !== null) {
        this.current = next;
        return;
      }
      await Bun.sleep(POLL_MS);
    }
  }
}

export async function runSeed(plan: ChaosPlan, bed: ChaosBed): Promise<SeedOutcome> {
  const { fleet, oracle, updates, pending } = bed;
  const asked = await oracle.ask(plan, updates.current);
  const id = `seed-${plan.seed}-${crypto.randomUUID()}`;
  let isOver = false;
  const deadline = AbortSignal.timeout(fleet.rolloutMsMax);
  const collecting = collect(fleet.url, asked.body(id), deadline).finally(() => {
    isOver = true;
  });
  const begun: ChaosKind[] = [];
  const begin = (fault: PlannedFault) => {
    begun.push(fault.kind);
    const act = fault.kind === "weights" ? updates.next() : fleet.inflict(fault);
    pending.add(act);
    // An error is thrown where it is awaited.
    act.catch(() => undefined);
  };
  // Each fault begins when it is due.
  const waiting = [...plan.faults];
  let most = 0;
  let changedMs = performance.now();
  while (!isOver) {
    const tokens = await tokensNow(fleet, id);
    const nowMs = performance.now();
    if (tokens > most) changedMs = nowMs;
    most = Math.max(most, tokens);
    const [next] = waiting;
    const isStill = nowMs - changedMs > STILL_MS;
    if (next !== undefined && (most >= next.share * asked.tokens || isStill)) {
      waiting.shift();
      changedMs = nowMs;
      begin(next);
    }
    await Bun.sleep(POLL_MS);
  }
  const collected = await collecting;
  const left = await healed(bed);
  const verdict = await asked.judge(collected, updates);
  const problems = left === null ? verdict.problems : [...verdict.problems, left];
  const lines = [...collected.responses.values()];
  return {
    plan,
    faults: begun,
    responses: lines.length,
    tokens: lines.reduce((sum, { token_ids: tokens }) => sum + tokens.length, 0),
    verdict: { ...verdict, problems },
    isRight: verdict.lost + verdict.twice + verdict.wrong + problems.length === 0,
  };
}

/** 0: the sidecar does not answer, or does not know the rollout yet. */
async function tokensNow(fleet: Fleet, id: string): Promise<number> {
  const state = (await fleet.ask(`/v1/rollouts/${id}`)) as {
    readonly progress: { readonly output_tokens: number };
  } | null;
  return state?.progress.output_tokens ?? 0;
}

/** Waits until all faults are over and every engine serves. null: all do; else what does not. */
async function healed({ fleet, pending }: ChaosBed): Promise<string | null> {
  const ended = await Promise.allSettled(pending);
  pending.clear();
  // A process that was killed did not start again.
  const failed = ended.find(({ status }) => status === "rejected");
  if (failed?.status === "rejected") return errorText(failed.reason);
  for (const endMs = performance.now() + RECOVERY_MS_MAX; performance.now() < endMs; ) {
    if (await fleet.isWhole()) return null;
    await Bun.sleep(POLL_MS);
  }
  const answer = JSON.stringify(await fleet.ask("/foretoken/workers"));
  return `not every engine serves ${RECOVERY_MS_MAX / 1000} s after the last fault: ${answer}`;
}
