// One seed: a rollout under the faults of its plan, compared with an undisturbed one. Faults come first; then everything
// heals, the rollout must end, and every engine must serve again.

import { assert } from "../base/assert.ts";
import { EngineTime } from "../metrics/effective-time.ts";
import { collect, judge, type Verdict } from "./client.ts";
import type { Fleet } from "./fleet.ts";
import type { ChaosKind, ChaosPlan, PlannedFault } from "./plan.ts";
import {
  bodyOf,
  type JobResponses,
  type Reference,
  type ResponseLine,
  WEIGHTS,
  type WeightsName,
} from "./reference.ts";

/** A rollout takes one to three seconds, and a silent link is given up after 30 s. */
const ROLLOUT_MS_MAX = 120_000;
const RECOVERY_MS_MAX = 60_000;
const UPDATE_MS_MAX = 60_000;
const POLL_MS = 30;
/** What the sidecar calls the weights that engines begin with. */
const UNNAMED = "0";
/** Without a new token for so long, the next fault begins whatever its share. */
const STILL_MS = 3_000;

export interface SeedOutcome {
  readonly plan: ChaosPlan;
  /** Those of the plan that began before the rollout ended. */
  readonly faults: readonly ChaosKind[];
  readonly responses: number;
  readonly verdict: Verdict;
  readonly isRight: boolean;
  readonly effort: Effort;
}

/** What a rollout took. */
export interface Effort {
  readonly time: EngineTime;
  /** Tokens of its responses; and those that were discarded, as far as the rollout's count showed it. */
  kept: number;
  again: number;
}

export interface ChaosBed {
  readonly fleet: Fleet;
  readonly reference: Reference;
  readonly updates: WeightUpdater;
  /** Faults of earlier rollouts that are not over. */
  readonly pending: Set<Promise<void>>;
}

/** The trainer: it updates the weights, and knows which name they have. */
export class WeightUpdater {
  readonly #fleet: Fleet;
  readonly #reference: Reference;
  /** Weights of the fleet. */
  current: WeightsName = WEIGHTS[0];

  constructor(fleet: Fleet, reference: Reference) {
    this.#fleet = fleet;
    this.#reference = reference;
  }

  /** Repeats the update until an engine has taken it. */
  async next(): Promise<void> {
    const next = this.current === "a" ? "b" : "a";
    const update_info = { weights_path: this.#reference.pathOf(next) };
    for (const endMs = performance.now() + UPDATE_MS_MAX; performance.now() < endMs; ) {
      const body = { update_info, weight_version: next };
      if ((await this.#fleet.ask("/update_weights", body, UPDATE_MS_MAX)) !== null) {
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
  const { fleet, reference, updates, pending } = bed;
  const wanted = await expectedOf(plan, reference, updates.current);
  const [first] = wanted.values();
  assert(first !== undefined, "there are weights");
  const effort: Effort = { time: new EngineTime(), kept: 0, again: 0 };
  const id = `seed-${plan.seed}-${crypto.randomUUID()}`;
  let isOver = false;
  const collecting = collect(
    fleet.url,
    bodyOf(id, first),
    AbortSignal.timeout(ROLLOUT_MS_MAX),
  ).finally(() => {
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
  const tokens = tokensOf(first.values());
  await follow({ id, plan, fleet, effort, tokens, begin, isOver: () => isOver });
  const collected = await collecting;
  const verdict = judge(collected, first.keys(), ({ chunks }) => {
    const versions = new Set(chunks.map(({ weight_version: version = "" }) => version));
    const [version = ""] = versions;
    return versions.size === 1 ? (wanted.get(version) ?? null) : null;
  });
  effort.time.at(performance.now(), null);
  effort.kept = tokensOf(collected.responses.values());
  const left = heals ? await healed(bed) : null;
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

/** By the name of the weights, the responses that an undisturbed run generates; the current weights come first. */
async function expectedOf(
  { job, faults }: ChaosPlan,
  reference: Reference,
  current: WeightsName,
): Promise<Map<string, JobResponses>> {
  const expected = new Map<string, JobResponses>();
  const isUpdated = faults.some(({ kind }) => kind === "weights");
  const names = isUpdated ? [current, ...WEIGHTS] : [current];
  for (const name of names) expected.set(name, await reference.responses(job, name));
  const unnamed = expected.get(WEIGHTS[0]);
  if (unnamed !== undefined) expected.set(UNNAMED, unnamed);
  return expected;
}

/** Begins each fault when it is due, and samples what the time goes into, until the rollout is over. */
async function follow(options: {
  id: string;
  plan: ChaosPlan;
  fleet: Fleet;
  effort: Effort;
  /** Of the whole rollout. */
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

/** Waits until all faults are over and every engine serves. null: all do. @throws AppError: a process does not start. */
export async function healed({ fleet, pending }: ChaosBed): Promise<string | null> {
  await Promise.all(pending);
  pending.clear();
  for (const endMs = performance.now() + RECOVERY_MS_MAX; performance.now() < endMs; ) {
    if ((await fleet.serving()) === fleet.size) return null;
    await Bun.sleep(POLL_MS);
  }
  const answer = JSON.stringify(await fleet.ask("/foretoken/workers"));
  return `not every engine serves ${RECOVERY_MS_MAX / 1000} s after the last fault: ${answer}`;
}
