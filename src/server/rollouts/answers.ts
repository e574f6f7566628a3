// The answers of the rollout API as schemas: the OpenAPI document shows them, and the handlers have their types.

import * as v from "valibot";

const count = v.pipe(v.number(), v.integer(), v.minValue(0));

export const RolloutStateSchema = v.object({
  id: v.string(),
  state: v.picklist(["running", "finished", "cancelled", "failed"]),
  detached: v.boolean(),
  progress: v.object({
    groups: count,
    finished_groups: count,
    requests: count,
    finished_requests: count,
    output_tokens: count,
    elapsed_s: v.number(),
  }),
  /** null: it runs. */
  report: v.nullable(v.record(v.string(), v.unknown())),
});

/** Names under which /v1/stream knows the rollout's groups and responses. */
export const RolloutDetailSchema = v.object({
  ...RolloutStateSchema.entries,
  groups: v.array(
    v.object({
      id: v.string(),
      stream_group: v.string(),
      requests: v.array(count),
      lengths: v.array(count),
      finished: count,
    }),
  ),
});

export const RolloutListSchema = v.object({ rollouts: v.array(RolloutStateSchema) });

export type RolloutStateAnswer = v.InferOutput<typeof RolloutStateSchema>;
export type RolloutDetail = v.InferOutput<typeof RolloutDetailSchema>;
