// One seed: a rollout under the faults of its plan, compared with an undisturbed one. Faults come first; then everything
// heals, the rollout must end, and every engine must serve again.

import { errorText } from "../../../src/core/base/errors.ts";
import { EngineTime } from "../../../src/observe/metrics/effective-time.ts";
import { collect, type Verdict } from "./client.ts";
import type { Fleet } from "./fleet.ts";
import type { Oracle, Trainer } from "./oracle.ts";
import type { ChaosKind, ChaosPlan, PlannedFault } from "./plan.ts";
import { type ResponseLine, WEIGHTS, type WeightsName } from "./response-line.ts";

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
  readonly verdict: Verdict;
  readonly isRight: boolean;
  readonly effort: Effort;
}

/** Cost of a rollout. */
export interface Effort {
  readonly time: EngineTime;
  /** Tokens of its responses; and those that were discarded, as far as the rollout's count showed it. */
  kept: number;
  again: number;
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

/** `heals`: all faults must be over, and every engine serve, before it resolves. */
export async function runSeed(
  plan: ChaosPlan,
  bed: ChaosBed,
  { heals }: { heals: boolean },
): Promise<SeedOutcome> {
  const { fleet, oracle, updates, pending } = bed;
  const asked = await oracle.ask(plan, updates.current);
  const effort: Effort = { time: new EngineTime(), kept: 0, again: 0 };
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
  await follow({ id, plan, fleet, effort, tokens: asked.tokens, begin, isOver: () => isOver });
  const collected = await collecting;
  effort.time.at(performance.now(), null);
  effort.kept = tokensOf(collected.responses.values());
  const left = heals ? await healed(bed) : null;
  const verdict = await asked.judge(collected, updates);
  const problems = left === null ? verdict.problems : [...verdict.problems, left];
  return {
    plan,
    faults: begun,
    responses: collected.responses.size,
    verdict: { ...verdict, problems },
    isRight: verdict.lost + verdict.twice + verdict.wrong + problems.length === 0,
    effort,
  };
}

function tokensOf(lines: Iterable<ResponseLine>): number {
  let tokens = 0;
  for (const line of lines) tokens += line.token_ids.length;
  return tokens;
}

/** Begins each fault when it is due, and samples what the time goes into, until the rollout is over. */
async function follow(options: {
  id: string;
  plan: ChaosPlan;
  fleet: Fleet;
  effort: Effort;
  /** Tokens of the whole rollout. */
  tokens: number;
  begin: (fault: PlannedFault) => void;
  isOver: () => boolean;
}): Promise<void> {
  const { id, plan, fleet, effort, begin, isOver } = options;
  const waiting = [...plan.faults];
  let most = 0;
  let last = 0;
  let changedMs = performance.now();
  effort.time.at(changedMs, { serving: fleet.size, size: fleet.size });
  while (!isOver()) {
    const [serving, tokens] = await Promise.all([fleet.serving(), tokensNow(fleet, id)]);
    const nowMs = performance.now();
    effort.time.at(nowMs, { serving, size: fleet.size });
    effort.again += Math.max(0, last - (tokens ?? last));
    last = tokens ?? last;
    if ((tokens ?? 0) > most) {
      most = tokens ?? 0;
      changedMs = nowMs;
    }
    const isStill = nowMs - changedMs > STILL_MS;
    const [next] = waiting;
    if (next !== undefined && (most >= next.share * options.tokens || isStill)) {
      waiting.shift();
      changedMs = nowMs;
      begin(next);
    }
    await Bun.sleep(POLL_MS);
  }
}

/** null: the sidecar does not answer, or does not know the rollout yet. */
async function tokensNow(fleet: Fleet, id: string): Promise<number | null> {
  const state = (await fleet.ask(`/v1/rollouts/${id}`)) as {
    readonly progress: { readonly output_tokens: number };
  } | null;
  return state?.progress.output_tokens ?? null;
}

/** Waits until all faults are over and every engine serves. null: all do; else what does not. */
export async function healed({ fleet, pending }: ChaosBed): Promise<string | null> {
  const ended = await Promise.allSettled(pending);
  pending.clear();
  // A process that was killed did not start again.
  const failed = ended.find(({ status }) => status === "rejected");
  if (failed?.status === "rejected") return errorText(failed.reason);
  for (const endMs = performance.now() + RECOVERY_MS_MAX; performance.now() < endMs; ) {
    if ((await fleet.serving()) === fleet.size) return null;
    await Bun.sleep(POLL_MS);
  }
  const answer = JSON.stringify(await fleet.ask("/foretoken/workers"));
  return `not every engine serves ${RECOVERY_MS_MAX / 1000} s after the last fault: ${answer}`;
}
