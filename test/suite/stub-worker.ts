// The part that workers of single tests and benches share: they take every request, and answer every call.

import type { WorkerId } from "../../src/core/base/ids.ts";
import type { ControlAnswer } from "../../src/core/rollout/operation.ts";
import type {
  EngineWorker,
  SamplingSupport,
  WorkerCapacity,
  WorkerCommand,
  WorkerListener,
} from "../../src/core/rollout/worker.ts";

export abstract class StubWorker implements EngineWorker {
  abstract readonly workerId: WorkerId;
  abstract readonly name: string;
  abstract readonly capacity: WorkerCapacity;
  protected tell: WorkerListener = () => {};

  abstract send(commands: readonly WorkerCommand[]): void;

  listen(listener: WorkerListener): void {
    this.tell = listener;
  }

  supports(): SamplingSupport {
    return { kind: "divided" };
  }

  async perform(): Promise<ControlAnswer> {
    return { status: 200, body: {} };
  }

  async close(): Promise<void> {}
}
