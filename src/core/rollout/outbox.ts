// Commands of the current turn, by worker: each worker gets one message a turn.

import type { WorkerId } from "../base/ids.ts";
import type { WorkerCommand } from "./worker.ts";

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
