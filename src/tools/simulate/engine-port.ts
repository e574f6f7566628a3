// A modelled engine as the production ledger sees it. The simulation hands work to the engine itself, since no
// tokens exist that could be sent: the message side of the port is closed.

import { assert } from "../../core/base/assert.ts";
import type { WorkerId } from "../../core/base/ids.ts";
import type {
  ControlAnswer,
  SamplingSupport,
  Worker,
  WorkerCapacity,
} from "../../core/rollout/worker.ts";
import type { ModelledEngine } from "./engine.ts";

export class EnginePort implements Worker {
  readonly workerId: WorkerId;
  readonly name: string;
  readonly capacity: WorkerCapacity;

  constructor(engine: ModelledEngine, contextTokens: number) {
    this.workerId = engine.workerId;
    this.name = `modelled engine ${engine.workerId}`;
    this.capacity = {
      slots: engine.slots,
      kvTokens: engine.kvTokens,
      contextTokens,
      kvBytesPerToken: engine.model.kvBytesPerToken,
    };
  }

  send(): void {
    assert(false, "a modelled engine takes no messages");
  }

  listen(): void {
    assert(false, "a modelled engine sends no messages");
  }

  supports(): SamplingSupport {
    return { kind: "divided" };
  }

  async control(): Promise<ControlAnswer> {
    return { status: 404, body: null };
  }

  async close(): Promise<void> {}
}
