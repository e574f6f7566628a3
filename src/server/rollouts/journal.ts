// The journal of one rollout: what its client asked for, and what there is of its responses. A process that takes the
// place of this one begins the rollout again from it.

import { AppError } from "../../core/base/errors.ts";
import { type HeldWeights, isEpoch } from "../../core/journal/held-weights.ts";
import type { SavedRun } from "../../core/journal/read.ts";
import { checkFormat } from "../../core/journal/run-journal.ts";
import type { DrawKey } from "../../core/request/request.ts";
import type { RolloutPlan } from "./plan.ts";

interface Header extends HeldWeights {
  readonly format: 1;
  readonly id: string;
  /** Digest of the request's body. */
  readonly hash: string;
  readonly plan: RolloutPlan;
  /** By group, of its responses. */
  readonly draws: readonly (readonly DrawKey[])[];
}

/** A rollout of an earlier process. */
export interface SavedRollout extends Header {
  readonly run: SavedRun;
}

/** @throws AppError invalid_config: the journal is of something else. */
export function savedRollout(run: SavedRun): SavedRollout {
  checkFormat(run);
  if (!isHeader(run.header)) {
    const problem = "is no journal of /v1/rollouts; use another folder for `foretoken rollout`";
    throw new AppError("invalid_config", `--journal: ${run.name} ${problem}`);
  }
  const { header } = run;
  const groups = header.plan.groups.map((group) => ({
    ...group,
    prompt: Int32Array.from(group.prompt),
  }));
  return { ...header, plan: { ...header.plan, groups }, run };
}

/** As far as the start of a server depends on it; the rest was checked when the journal began. */
function isHeader(header: object): header is Header {
  const { format, id, hash, plan, draws, epoch, version } = header as Partial<Header>;
  const texts = [id, hash, version].every((text) => typeof text === "string");
  const { groups } = Object(plan) as Partial<RolloutPlan>;
  const hasPrompts =
    Array.isArray(groups) && groups.every((group) => Array.isArray(Object(group).prompt));
  return format === 1 && texts && isEpoch(epoch) && Array.isArray(draws) && hasPrompts;
}
