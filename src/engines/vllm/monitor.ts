// Polls a server: its metrics about once a second, its health when streams are silent. It reports observations; the
// worker decides what follows.

import type { FoundEngine, Polled, ServerAccess } from "./dialect.ts";
import { type HttpAnswer, jsonIn, statusProblem } from "./http.ts";
import type { ServerMetrics } from "./metrics.ts";

/** A longer weight version is ignored. */
const VERSION_CHARACTERS_MAX = 512;

export interface MonitorListener {
  /** Called about once a second. Returns whether a stream has been silent for so long that health must be checked. */
  watched(nowMs: number): boolean;
  polled(metrics: ServerMetrics): void;
  /** Called with the server's weight version. */
  versionRead(name: string): void;
  /**
   * The metrics could not be read, for the `failures`th time in a row. `refusedMs`: time for which connections have been
   * refused; null: they are not.
   */
  pollFailed(problem: string, failures: number, refusedMs: number | null): void;
  /** Too many health checks in a row have failed. */
  unhealthy(problem: string): void;
}

export class Monitor {
  readonly #parts: ServerAccess & FoundEngine;
  readonly #listener: MonitorListener;
  #cancelTick: (() => void) | null = null;
  #isStopped = false;
  #isPolling = false;
  /** The poll under way began before the last `pollAnew`, so its result may be out of date. */
  #isStale = false;
  #pollFailures = 0;
  /** When the address first refused a connection since it last answered; null: it has not. */
  #refusedAtMs: number | null = null;
  #isChecking = false;
  #checkedMs = Number.NEGATIVE_INFINITY;
  #healthFailures = 0;
  /** Whether the server has a route for its weight version: vLLM from 0.32 on, in development mode. */
  #hasVersions = true;

  constructor(parts: ServerAccess & FoundEngine, listener: MonitorListener) {
    this.#parts = parts;
    this.#listener = listener;
    this.#schedule();
  }

  stop(): void {
    this.#isStopped = true;
    this.#cancelTick?.();
  }

  #schedule(): void {
    const { pollMs, stallMs } = this.#parts.limits;
    this.#cancelTick = this.#parts.clock.after(Math.min(pollMs, stallMs), () => {
      this.#schedule();
      void this.poll();
      const nowMs = this.#parts.clock.nowMs();
      const isSilent = this.#listener.watched(nowMs);
      if (isSilent && nowMs - this.#checkedMs >= stallMs) void this.#check();
    });
  }

  /** Like `poll`, but the reported result is of a request sent after this call. */
  async pollAnew(): Promise<void> {
    this.#isStale = this.#isPolling;
    await this.poll();
  }

  /** Reads the metrics now, unless a poll is under way. */
  async poll(): Promise<void> {
    if (this.#isPolling || this.#isStopped) return;
    this.#isPolling = true;
    const { dialect, capabilities } = this.#parts;
    let polled: Polled;
    do {
      this.#isStale = false;
      polled = await dialect.poll((path) => this.#get(path), capabilities);
    } while (this.#isStale && !this.#isStopped);
    this.#isPolling = false;
    if (this.#isStopped) return;
    if (polled.kind === "metrics") {
      this.#pollFailures = 0;
      this.#refusedAtMs = null;
      this.#listener.polled(polled.metrics);
      await this.#readVersion();
      return;
    }
    const nowMs = this.#parts.clock.nowMs();
    this.#pollFailures += 1;
    this.#refusedAtMs = polled.isRefused ? (this.#refusedAtMs ?? nowMs) : null;
    const refusedMs = this.#refusedAtMs === null ? null : nowMs - this.#refusedAtMs;
    this.#listener.pollFailed(polled.problem, this.#pollFailures, refusedMs);
  }

  async #readVersion(): Promise<void> {
    if (!this.#hasVersions || this.#isStopped) return;
    const answer = await this.#get(this.#parts.dialect.versionPath);
    if (answer.kind !== "answer" || this.#isStopped) return;
    const name = jsonIn(answer)?.weight_version;
    const isName = typeof name === "string" && name.length <= VERSION_CHARACTERS_MAX;
    if (isName) this.#listener.versionRead(name);
    // Anything but a passing failure: there is no such route.
    else if (answer.status < 500) this.#hasVersions = false;
  }

  async #check(): Promise<void> {
    if (this.#isChecking) return;
    this.#isChecking = true;
    const problem = statusProblem(await this.#get(this.#parts.dialect.healthPath));
    this.#isChecking = false;
    this.#checkedMs = this.#parts.clock.nowMs();
    this.#healthFailures = problem === null ? 0 : this.#healthFailures + 1;
    if (this.#isStopped || problem === null) return;
    if (this.#healthFailures >= this.#parts.limits.healthFailuresMax)
      this.#listener.unhealthy(problem);
  }

  #get(path: string): Promise<HttpAnswer> {
    return this.#parts.client.get(path, this.#parts.limits.checkMsMax);
  }
}
