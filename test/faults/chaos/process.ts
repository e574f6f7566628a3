// One `foretoken` process of a chaos run: its signals, its lines, and whether it could work at the moment.

import { AppError } from "../../../src/core/base/errors.ts";
import { linesOf } from "../../suite/lines.ts";

/** Of the output, for the report of a failure. */
const LINES_KEPT = 200;
const POLL_MS = 10;

/** Of this installation. */
export interface Installation {
  /** What starts the tool. */
  readonly program: readonly string[];
  readonly model: string;
  readonly prompts: string;
}

export class ChaosProcess {
  readonly #child;
  readonly #lines: string[] = [];
  #isStopped = false;
  #isKilled = false;

  constructor(program: readonly string[], args: readonly string[]) {
    this.#child = Bun.spawn([...program, ...args], {
      env: { ...process.env, FORETOKEN_PARENT: `${process.pid}` },
      stdin: "ignore",
      stdout: "pipe",
      stderr: "pipe",
    });
    for (const stream of [this.#child.stdout, this.#child.stderr]) void this.#read(stream);
  }

  get pid(): number {
    return this.#child.pid;
  }

  /** It runs, and no SIGSTOP holds it. */
  get isRunning(): boolean {
    return !this.hasEnded && !this.#isStopped;
  }

  get hasEnded(): boolean {
    return this.#child.exitCode !== null || this.#child.signalCode !== null;
  }

  /** The last ones. */
  get lines(): readonly string[] {
    return this.#lines;
  }

  /** SIGSTOP, and SIGCONT after `ms`. */
  async stopFor(ms: number): Promise<void> {
    this.#isStopped = true;
    this.#child.kill("SIGSTOP");
    await Bun.sleep(ms);
    this.#child.kill("SIGCONT");
    this.#isStopped = false;
  }

  async kill(): Promise<void> {
    this.#isKilled = true;
    this.#child.kill("SIGKILL");
    await this.#child.exited;
  }

  /** Resolves when it has exited by itself, with the status. */
  async exited(): Promise<number> {
    return await this.#child.exited;
  }

  /**
   * Resolves when it has written a line that begins so, or was killed here.
   * @throws AppError worker_failed: it ended by itself, or took too long.
   */
  async said(start: string, msMax: number): Promise<void> {
    for (const endMs = performance.now() + msMax; ; await Bun.sleep(POLL_MS)) {
      if (this.#isKilled || this.#lines.some((line) => line.startsWith(start))) return;
      if (!this.hasEnded && performance.now() < endMs) continue;
      const what = this.hasEnded ? "a process ended" : `a process took longer than ${msMax} ms`;
      throw new AppError("worker_failed", `${what} before it said "${start}": ${this.#tail()}`);
    }
  }

  #tail(): string {
    return this.#lines.slice(-5).join(" | ");
  }

  async #read(stream: ReadableStream<Uint8Array>): Promise<void> {
    for await (const line of linesOf(stream)) {
      this.#lines.push(line);
      if (this.#lines.length > LINES_KEPT) this.#lines.splice(0, this.#lines.length - LINES_KEPT);
    }
  }
}
