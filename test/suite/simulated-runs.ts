import { weightEpoch, workerId } from "../../src/core/base/ids.ts";
import type { RequestSpec, SamplingParams } from "../../src/core/request/request.ts";
import type { KvBlob, WorkerCommand } from "../../src/core/rollout/worker.ts";
import { SimulatedWorker, simulatedToken } from "../faults/simulated/worker.ts";
import { samplingOf, specOf } from "./request-spec.ts";

export const EPOCH_0 = weightEpoch(0);
const CAPACITY = { slots: 2, kvTokens: 400, contextTokens: 128, kvBytesPerToken: 8 };
const PROMPT = Int32Array.of(5, 6, 7);

export function newSimulated(id = 0, length = 20): SimulatedWorker {
  const options = { workerId: workerId(id), capacity: CAPACITY, epoch: EPOCH_0 };
  return new SimulatedWorker({ ...options, lengthOf: () => length });
}

export function newSpec(id: number, sampling: Partial<SamplingParams> = {}): RequestSpec {
  return specOf(id, {
    prompt: PROMPT,
    sampling: samplingOf({ seed: 7, tokensMax: 32, ...sampling }),
  });
}

export function runOf(
  request: RequestSpec,
  options: { from?: number; chunkTokens?: number; kv?: KvBlob | null } = {},
): WorkerCommand {
  const { from = 0, chunkTokens = 32, kv = null } = options;
  const output = tokensOf(request, 0, from);
  return { kind: "run", request, output, chunkTokens, priority: "low", kv, draft: null };
}

export function tokensOf(request: RequestSpec, from: number, to: number): Int32Array {
  return Int32Array.from({ length: to - from }, (_, i) =>
    simulatedToken(request.requestId, from + i),
  );
}
