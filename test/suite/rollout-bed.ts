// A rollout over simulated workers that a test steps by hand; for tests of what single workers and listeners do wrong.

import { expect } from "bun:test";
import { groupId, type WeightEpoch, weightEpoch, workerId } from "../../src/core/base/ids.ts";
import type { KvPool } from "../../src/core/kv/pool.ts";
import type { Group } from "../../src/core/request/buffer.ts";
import type { SamplingParams } from "../../src/core/request/request.ts";
import type { RolloutReader } from "../../src/core/rollout/events.ts";
import { Rollout, type RolloutOptions } from "../../src/core/rollout/rollout.ts";
import type { WorkerCommand, WorkerEvent, WorkerListener } from "../../src/core/rollout/worker.ts";
import { loadCore } from "../../src/core/wasm/load.ts";
import { EmbeddedKvPool } from "../../src/host/embedded-pool.ts";
import { type LengthOf, SimulatedWorker, simulatedToken } from "../faults/simulated/worker.ts";
import { ManualClock } from "./manual-clock.ts";
import { samplingOf } from "./request-spec.ts";

const core = loadCore();
export const EPOCH = weightEpoch(0);
export const LENGTH = 20;

/** A simulated worker that hands out its listener, and may throw when it is sent something. */
export class OpenWorker extends SimulatedWorker {
  readonly sent: WorkerCommand["kind"][] = [];
  say: (epoch: WeightEpoch, events: readonly WorkerEvent[]) => void = () => {};
  throws = false;

  override listen(listener: WorkerListener): void {
    super.listen(listener);
    this.say = listener;
  }

  override send(commands: readonly WorkerCommand[]): void {
    if (this.throws) throw new RangeError("Maximum call stack size exceeded");
    this.sent.push(...commands.map(({ kind }) => kind));
    super.send(commands);
  }
}

export function world(options: {
  pool?: KvPool;
  listener?: RolloutReader;
  policy?: RolloutOptions["policy"];
  draft?: RolloutOptions["draft"];
  slots?: number;
  contextTokens?: number;
  poolBytes?: number;
  vocabularySize?: number;
  chunkTokens?: number;
  later?: NonNullable<RolloutOptions["later"]>;
  history?: NonNullable<RolloutOptions["history"]>;
  lengthOf?: LengthOf;
  /** Default: OpenWorker. */
  newWorker?: typeof OpenWorker;
}) {
  const clock = new ManualClock();
  const failed: string[] = [];
  const threw: unknown[] = [];
  let broken: unknown = null;
  const rollout = new Rollout({
    policy: options.policy ?? "foretoken",
    draft: options.draft ?? "grouped",
    chunkTokens: options.chunkTokens ?? 4,
    epoch: EPOCH,
    pool:
      options.pool ?? new EmbeddedKvPool({ memoryBytesMax: options.poolBytes ?? 1000, disk: null }),
    clock,
    core,
    vocabularySize: options.vocabularySize ?? Number.POSITIVE_INFINITY,
    ...(options.later && { later: options.later }),
    ...(options.history && { history: options.history }),
    listener: {
      workerFailed: (worker, message) => failed.push(`${worker.workerId}: ${message}`),
      threw: (error) => threw.push(error),
      broken: (error) => {
        broken = error;
      },
      ...options.listener,
    },
  });
  const workers: OpenWorker[] = [];
  const join = (given: { kvTokens?: number; as?: number } = {}) => {
    const { slots = 2, contextTokens = 64 } = options;
    const { newWorker = OpenWorker, lengthOf = () => LENGTH } = options;
    const { kvTokens = 400, as = workers.length } = given;
    const worker = new newWorker({
      workerId: workerId(as),
      capacity: { slots, kvTokens, contextTokens, kvBytesPerToken: 8 },
      epoch: EPOCH,
      lengthOf,
    });
    workers[as] = worker;
    return worker;
  };
  const submit = (
    name: string,
    size = 1,
    prompt = Int32Array.of(1, 2),
    engineFields: SamplingParams["engineFields"] = null,
  ): Group =>
    rollout.submit({
      groupId: groupId(name),
      prompt,
      size,
      sampling: samplingOf({ seed: 1, tokensMax: 40, engineFields }),
    });
  const steps = async (count: number): Promise<void> => {
    for (let i = 0; i < count; i += 1) {
      for (const worker of workers) worker.step();
      clock.advance(1);
      await new Promise<void>((resolve) => setImmediate(resolve));
      if (broken !== null) throw broken;
    }
  };
  return { clock, rollout, workers, join, submit, steps, failed, threw };
}

export function expectWhole(groups: readonly Group[]): void {
  for (const { spec, response } of groups.flatMap((group) => group.requests)) {
    expect(response.finish).toBe("stop");
    expect([...response.tokens()]).toEqual(
      Array.from({ length: LENGTH }, (_, at) => simulatedToken(spec.requestId, at)),
    );
  }
}
