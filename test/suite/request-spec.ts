// Requests as tests give them to an engine: what a test does not name is as in a request that asks for nothing, drawn at
// temperature 1, without stop tokens, in one piece.

import { groupId, requestId } from "../../src/core/base/ids.ts";
import {
  drawKey,
  type RequestSpec,
  SAMPLING_DEFAULTS,
  type SamplingParams,
} from "../../src/core/request/request.ts";
import type { WorkerCommand } from "../../src/core/rollout/worker.ts";

export type RunCommand = Extract<WorkerCommand, { kind: "run" }>;

export function samplingOf(
  fields: Partial<SamplingParams> & Pick<SamplingParams, "tokensMax">,
): SamplingParams {
  return { ...SAMPLING_DEFAULTS, temperature: 1, seed: 0, stopTokenIds: [], ...fields };
}

/** Request `id`, which is as well its number in the group "g". */
export function specOf(
  id: number,
  fields: Partial<RequestSpec> & Pick<RequestSpec, "prompt" | "sampling">,
): RequestSpec {
  const group = fields.groupId ?? groupId("g");
  const sampleIndex = fields.sampleIndex ?? id;
  const draw = drawKey(fields.sampling.seed, group, sampleIndex);
  return {
    ...{ requestId: requestId(id), groupId: group, sampleIndex, draw, divisible: true },
    ...fields,
  };
}

/** Runs a request after `output`, without KV and drafts. */
export function runCommand(
  request: RequestSpec,
  fields: { output?: readonly number[]; chunkTokens: number; expertsFrom?: number },
): RunCommand {
  const { output = [], ...rest } = fields;
  const without = { priority: "low", kv: null, draft: null } as const;
  return { kind: "run", request, output: Int32Array.from(output), ...without, ...rest };
}
