import { weightEpoch, workerId } from "../../src/core/base/ids.ts";
import type { RequestSpec } from "../../src/core/request/request.ts";
import type { KvBlob, WorkerCommand } from "../../src/core/rollout/worker.ts";
import { SimulatedWorker, simulatedToken } from "../faults/simulated/worker.ts";

export const EPOCH_0 = weightEpoch(0);
const CAPACITY = { slots: 2, kvTokens: 400, contextTokens: 128, kvBytesPerToken: 8 };

export function newSimulated(id = 0, length = 20): SimulatedWorker {
  const options = { workerId: workerId(id), capacity: CAPACITY, epoch: EPOCH_0 };
  return new SimulatedWorker({ ...options, lengthOf: () => length });
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
