// One engine server of a chaos run's fleet, behind a proxy: a stand-in's process here, a vLLM server in `vllm-server.ts`. It is
// killed and stopped on request, and runs again afterwards.

import { startStandIn, type ToolProcess } from "../process.ts";
import type { StandInOptions } from "../stand-in/vllm-stand-in.ts";

export interface Member {
  readonly port: number;
  /** The process serves and is not held by SIGSTOP. */
  readonly isRunning: boolean;
  /** Last output of the process. */
  readonly lines: readonly string[];
  /** Resolves when it serves. @throws AppError worker_failed. */
  started(): Promise<void>;
  /** kill -9. Resolves when it serves again; it is started after `ms`, or when its supervisor does. */
  killFor(ms: number): Promise<void>;
  /** SIGSTOP, and SIGCONT after `ms`. */
  stopFor(ms: number): Promise<void>;
  close(): Promise<void>;
}

export class StandInMember implements Member {
  readonly port: number;
  readonly #start: () => ToolProcess;
  #process: ToolProcess;

  constructor(options: Partial<StandInOptions>, port: number) {
    this.port = port;
    this.#start = () => startStandIn({ ...options, port });
    this.#process = this.#start();
  }

  get isRunning(): boolean {
    return this.#process.isRunning;
  }

  get lines(): readonly string[] {
    return this.#process.lines;
  }

  async started(): Promise<void> {
    await this.#process.listens();
  }

  async killFor(ms: number): Promise<void> {
    const killed = this.#process;
    await killed.kill();
    await Bun.sleep(ms);
    // It was killed twice, and is started once.
    if (this.#process !== killed) return;
    this.#process = this.#start();
    await this.started();
  }

  async stopFor(ms: number): Promise<void> {
    await this.#process.stopFor(ms);
  }

  async close(): Promise<void> {
    await this.#process.kill();
  }
}
