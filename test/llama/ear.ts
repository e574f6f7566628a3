// Listens to a worker in a thread of its own, and waits for what it says. Used by tests only.

import type { WeightEpoch } from "../../src/core/base/ids.ts";
import type { EngineWorker, WorkerEvent, WorkerStats } from "../../src/core/rollout/worker.ts";
import { Collector } from "./engine-fixture.ts";

/** Listens to a worker; `until` resolves when the condition holds after some event. */
export class Ear {
  readonly collector = new Collector();
  readonly epochs: WeightEpoch[] = [];
  stats: WorkerStats | null = null;
  #waiting: { done: () => boolean; resolve: () => void }[] = [];

  constructor(worker: EngineWorker) {
    worker.listen(
      (epoch, events) => this.#hear(epoch, events),
      () => null,
    );
  }

  until(done: () => boolean): Promise<void> {
    if (done()) return Promise.resolve();
    return new Promise((resolve) => this.#waiting.push({ done, resolve }));
  }

  kinds(): string[] {
    return this.collector.others.map((event) => event.kind);
  }

  #hear(epoch: WeightEpoch, events: readonly WorkerEvent[]): void {
    this.epochs.push(epoch);
    this.collector.take(events);
    for (const event of events) if (event.kind === "stats") this.stats = event.stats;
    const ready = this.#waiting.filter(({ done }) => done());
    this.#waiting = this.#waiting.filter((one) => !ready.includes(one));
    for (const { resolve } of ready) resolve();
  }
}

/** Responses that have ended. */
export function finished(ear: Ear): number {
  let count = 0;
  for (const { finish } of ear.collector.responses.values()) if (finish !== null) count += 1;
  return count;
}
