// When the rollout acts: something happens, and everything that happens before the next microtask is followed up together.
// An error here is a bug in the state that all requests share, so it stops the rollout. Errors of one listener
// (`events.ts`), of one worker's `send` (Loop) or of the KV pool (`PooledKv`) are caught where they arise.

import { contain } from "../base/contain.ts";
import type { WorkerId } from "../base/ids.ts";
import type { WorkerCommand } from "./worker.ts";

export class Turns {
  readonly #follow: () => void;
  readonly #broken: (error: unknown) => void;
  #isDue = false;
  #isStopped = false;

  /** `follow`: what every turn ends with. `broken`: one of the two threw; nothing runs after it. */
  constructor(follow: () => void, broken: (error: unknown) => void) {
    this.#follow = follow;
    this.#broken = broken;
  }

  get isStopped(): boolean {
    return this.#isStopped;
  }

  stop(): void {
    this.#isStopped = true;
  }

  /** Runs one turn: what happens now, and soon what follows from it. Turns within turns are part of the first. */
  run(happen: () => void): void {
    this.#guarded(happen);
    this.wake();
  }

  /** Makes the end of a turn due at the next microtask. */
  wake(): void {
    if (this.#isDue) return;
    this.#isDue = true;
    queueMicrotask(() => {
      this.#isDue = false;
      this.#guarded(this.#follow);
    });
  }

  #guarded(act: () => void): void {
    if (this.#isStopped) return;
    contain(act, (error) => {
      this.#isStopped = true;
      this.#broken(error);
    });
  }
}

/** Commands of the current turn, by worker: each worker gets one message a turn. */
export class Outbox {
  #commands = new Map<WorkerId, WorkerCommand[]>();

  post(workerId: WorkerId, command: WorkerCommand): void {
    this.#commands.getOrInsertComputed(workerId, () => []).push(command);
  }

  drop(workerId: WorkerId): void {
    this.#commands.delete(workerId);
  }

  clear(): void {
    this.#commands.clear();
  }

  /** Takes all posted commands. Commands posted while these are sent belong to the next turn. */
  take(): Iterable<readonly [WorkerId, readonly WorkerCommand[]]> {
    const commands = this.#commands;
    if (commands.size > 0) this.#commands = new Map();
    return commands;
  }
}
