// Groups that a rollout had not made whole when it ended, for a rollout that goes on with them: prompts, random numbers,
// and of each response the tokens and logprobs, chunk by chunk, each with the epoch of its weights.

import type { WeightEpoch } from "../../core/base/ids.ts";
import type { RolloutRequest } from "../../core/request/buffer.ts";
import type { DrawKey } from "../../core/request/request.ts";
import type { SavedOutput } from "../../core/request/response.ts";
import { isStale } from "../../core/rollout/selection.ts";
import { invalid } from "../route.ts";
import type { GroupPlan, RolloutPlan } from "./plan.ts";

export interface CarriedGroup {
  readonly plan: GroupPlan;
  readonly draws: readonly DrawKey[];
  readonly outputs: readonly SavedOutput[];
}

/** A group as it is carried on. `requests`: all of its requests, before running ones are given up. */
export function carriedGroup(plan: GroupPlan, requests: readonly RolloutRequest[]): CarriedGroup {
  const outputs = requests.map(({ response }) => ({
    tokens: response.tokens(),
    logprobs: response.logprobs(),
    top: null,
    chunks: response.chunks.map(({ run: _run, ...chunk }) => chunk),
    // A response that was given up goes on as well.
    finish: response.finish === "abort" ? null : response.finish,
    refusal: null,
  }));
  return { plan, draws: requests.map(({ spec }) => spec.draw), outputs };
}

/** The plan with the carried groups before its own. @throws AppError invalid_field. */
export function withCarried(plan: RolloutPlan, carried: readonly CarriedGroup[]): RolloutPlan {
  const ids = new Set(carried.map((group) => group.plan.id));
  const twice = plan.groups.findIndex(({ id }) => ids.has(id));
  if (twice >= 0) throw invalid(`groups.${twice}.id`, "is that of a group that is carried on");
  const groups = [...carried.map((group) => group.plan), ...plan.groups];
  return { ...plan, groups, requests: groups.reduce((sum, { n }) => sum + n, 0) };
}

/** Whether the response continues from `output`; if its tokens are too old it begins anew, finished or not. */
export function isFresh(
  { chunks, tokens }: SavedOutput,
  epoch: WeightEpoch,
  { isStrict, stalenessMax }: RolloutPlan,
): boolean {
  const wanted = { isStrict, stalenessMax: stalenessMax ?? 0 };
  return tokens.length > 0 && !isStale(wanted, chunks, epoch);
}
