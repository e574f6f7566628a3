// When draft groups and siblings' tokens go out to the workers that draft from them: tokens in rounds, so that messages
// stay few and turns short; nothing to a worker that does not draft.

import type { Clock } from "../base/clock.ts";
import type { WorkerId } from "../base/ids.ts";
import type { DraftSource } from "../draft/group-update.ts";
import type { DraftRegistry } from "../draft/registry.ts";
import type { RolloutRequest } from "../request/buffer.ts";
import type { DriftGuard } from "./drift-guard.ts";
import type { Outbox } from "./outbox.ts";
import type { EngineWorker } from "./worker.ts";

/**
 * Siblings' tokens go out to each worker at most so often. A message costs the engine it goes to about as
 * much as a hundred tokens of drafting, and a draft loses little by siblings that lag a few dozen tokens.
 */
const DELTA_INTERVAL_MS = 50;
/** Requests whose tokens go out in one turn, at most, so that no turn is long. */
const DELTA_REQUESTS_MAX = 256;
/** And in the long run: with more requests than that the pauses grow, and deltas take a few percent of a core. */
const DELTA_REQUESTS_PER_MS = 20;

export class SiblingTokens {
  readonly #clock: Clock;
  readonly #registry: DraftRegistry;
  readonly #drift: DriftGuard;
  readonly #outbox: Outbox;
  #dueMs = Number.NEGATIVE_INFINITY;
  /** Requests whose tokens are still to go out in this round. */
  #left = 0;

  constructor(parts: {
    clock: Clock;
    registry: DraftRegistry;
    drift: DriftGuard;
    outbox: Outbox;
  }) {
    this.#clock = parts.clock;
    this.#registry = parts.registry;
    this.#drift = parts.drift;
    this.#outbox = parts.outbox;
  }

  /** Where the request drafts from on the worker; null: it gets no drafts there. */
  source(request: RolloutRequest, workerId: WorkerId): DraftSource | null {
    return this.#drift.mayDraft(workerId) ? this.#registry.source(request) : null;
  }

  /** The worker is about to run the request, and must have its own text before it adds to it; its siblings' can follow. */
  begin(request: RolloutRequest, worker: EngineWorker): void {
    const { workerId, capacity } = worker;
    if (capacity.drafts === false) return;
    for (const update of this.#registry.begin(request, workerId)) {
      this.#outbox.post(workerId, update);
    }
  }

  /** Posts the updates of this turn. */
  post(): void {
    if (this.#left === 0) {
      const nowMs = this.#clock.nowMs();
      if (nowMs < this.#dueMs) return;
      this.#left = this.#registry.staleCount;
      this.#dueMs = nowMs + Math.max(DELTA_INTERVAL_MS, this.#left / DELTA_REQUESTS_PER_MS);
    }
    const count = Math.min(this.#left, DELTA_REQUESTS_MAX);
    this.#left -= count;
    for (const { workerId, update } of count === 0 ? [] : this.#registry.flush(count)) {
      this.#outbox.post(workerId, update);
    }
  }
}
