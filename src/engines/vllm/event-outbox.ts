// A worker's unsent events. All events of one turn of the event loop are sent as one batch, with the new tokens of a run as
// one event.

import type { WorkerEvent } from "../../core/rollout/worker.ts";
import type { ChunkRun } from "./chunk-run.ts";
import type { TimerClock } from "./clock.ts";

export class EventOutbox {
  readonly #clock: TimerClock;
  readonly #send: (events: WorkerEvent[]) => void;
  /** Runs with unsent tokens. */
  readonly #runs = new Set<ChunkRun>();
  #events: WorkerEvent[] = [];
  #cancel: (() => void) | null = null;

  constructor(clock: TimerClock, send: (events: WorkerEvent[]) => void) {
    this.#clock = clock;
    this.#send = send;
  }

  say(event: WorkerEvent): void {
    this.#events.push(event);
    this.#schedule();
  }

  /** Call when the run has new tokens. */
  changed(run: ChunkRun): void {
    this.#runs.add(run);
    this.#schedule();
  }

  /** Forgets the run: its tokens were sent, or are not needed. */
  drop(run: ChunkRun): void {
    this.#runs.delete(run);
  }

  /** Drops all unsent events and tokens. */
  clear(): void {
    this.#cancel?.();
    this.#cancel = null;
    this.#runs.clear();
    this.#events = [];
  }

  /** Takes all unsent events. */
  take(): WorkerEvent[] {
    for (const run of this.#runs) {
      const event = run.deliver(false);
      if (event !== null) this.#events.push(event);
    }
    const events = this.#events;
    this.clear();
    return events;
  }

  /** Sends all unsent events now. */
  flush(): void {
    const events = this.take();
    if (events.length > 0) this.#send(events);
  }

  #schedule(): void {
    this.#cancel ??= this.#clock.after(0, () => this.flush());
  }
}
