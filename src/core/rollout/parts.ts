// State that all parts of a rollout share: its requests, the facts learned about them, and the contents of its workers.

import type { Clock } from "../base/clock.ts";
import type { WeightEpoch } from "../base/ids.ts";
import type { ContextManager } from "../context/context.ts";
import type { DraftRegistry } from "../draft/registry.ts";
import type { Request, RequestBuffer } from "../request/buffer.ts";
import type { ChunkLength } from "../schedule/chunk-length.ts";
import type { Scheduler } from "../schedule/scheduler.ts";
import type { Ledger } from "./ledger.ts";
import type { RolloutListener } from "./listener.ts";
import type { Meter } from "./meter.ts";
import type { Outbox } from "./outbox.ts";

export interface RolloutParts {
  readonly buffer: RequestBuffer;
  readonly context: ContextManager;
  readonly chunks: ChunkLength;
  readonly scheduler: Scheduler;
  readonly registry: DraftRegistry;
  readonly ledger: Ledger;
  readonly outbox: Outbox;
  readonly meter: Meter;
  readonly listener: RolloutListener;
  readonly clock: Clock;
  /** The current weight epoch. */
  readonly epoch: () => WeightEpoch;
  /** Runs `act` as a turn: the scheduler follows. */
  readonly turn: (act: () => void) => void;
  /** Schedules a waiting request, unless something holds it. */
  readonly wait: (request: Request) => void;
}
