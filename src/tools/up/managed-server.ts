// Keeps one server running: starts it, waits until it is healthy, restarts it with growing pauses when it ends, and
// stops it with all its processes. Its output goes to a log file, whose last lines are reported when it dies.

import { closeSync } from "node:fs";
import { AppError } from "../../core/base/errors.ts";
import { getOnce, statusProblem } from "../../engines/vllm/http.ts";
import { Backoff, type BackoffLimits } from "./backoff.ts";
import { openLog, ProcessGroup, tailOf } from "./process-group.ts";

export interface ServerSpec {
  readonly name: string;
  /** URL that the server will listen on. */
  readonly url: string;
  readonly command: readonly string[];
  readonly env: Readonly<Record<string, string | undefined>>;
  readonly logPath: string;
  /** Time limit of a start, in ms. */
  readonly startMsMax: number;
  /** Time between SIGTERM and SIGKILL, in ms. */
  readonly graceMs: number;
  readonly backoff?: BackoffLimits;
}

/** An event of a server; its fields have the log's names. */
export type ServerEvent =
  | { readonly kind: "started"; readonly pid: number }
  /** The server is still starting; `last_line` of its log, null: none. Reported every few seconds. */
  | { readonly kind: "starting"; readonly seconds: number; readonly last_line: string | null }
  | { readonly kind: "healthy"; readonly seconds: number }
  | { readonly kind: "died"; readonly how: string; readonly lines: readonly string[] }
  | { readonly kind: "restarts"; readonly seconds: number }
  /** The server has ended too often: it is not started again. */
  | { readonly kind: "gave_up" };

const LINES_REPORTED = 8;
const HEALTH_PAUSE_MS = 250;
const HEALTH_MS_MAX = 10_000;
const WAITING_TOLD_MS = 5_000;

export class ManagedServer {
  readonly spec: ServerSpec;
  readonly #notify: (event: ServerEvent) => void;
  readonly #backoff: Backoff;
  #group: ProcessGroup | null = null;
  #isStopping = false;
  /** Resolves when the server is to stop, which ends a pause. */
  readonly #stopped = Promise.withResolvers<void>();
  #kept: Promise<void> | null = null;

  constructor(spec: ServerSpec, notify: (event: ServerEvent) => void) {
    this.spec = spec;
    this.#notify = notify;
    this.#backoff = new Backoff(spec.backoff);
  }

  /** Id of the server's process group; null: it is not running. */
  get pid(): number | null {
    return this.#group?.pid ?? null;
  }

  /**
   * Starts the server and waits until it is healthy; from then on it is kept running. @throws AppError worker_failed:
   * the server ended before, or did not become healthy in time. No process of it is left.
   */
  async start(): Promise<void> {
    const failure = await this.#startOnce();
    if (failure !== null) {
      const lines = tailOf(this.spec.logPath, LINES_REPORTED).map((line) => `\n  ${line}`);
      const where = `${this.spec.name} (${this.spec.logPath})`;
      throw new AppError("worker_failed", `${where}: ${failure}${lines.join("")}`);
    }
    this.#kept = this.#keep();
  }

  /** Resolves when none of its processes is left. */
  async stop(): Promise<void> {
    this.#isStopping = true;
    this.#stopped.resolve();
    await this.#group?.stop(this.spec.graceMs);
    await this.#kept;
  }

  /** Kills the server without waiting, at the very end of this process. */
  kill(): void {
    this.#isStopping = true;
    this.#group?.signal("SIGKILL");
  }

  async #keep(): Promise<void> {
    let healthyFromMs: number | null = performance.now();
    while (!this.#isStopping && this.#group !== null) {
      const how = await this.#group.ended;
      await this.#group.clear();
      this.#group = null;
      if (this.#isStopping) return;
      this.#notify({ kind: "died", how, lines: tailOf(this.spec.logPath, LINES_REPORTED) });
      const healthyMs = healthyFromMs === null ? 0 : performance.now() - healthyFromMs;
      const pauseMs = this.#backoff.next(healthyMs);
      if (pauseMs === null) {
        this.#notify({ kind: "gave_up" });
        return;
      }
      this.#notify({ kind: "restarts", seconds: rounded(pauseMs) });
      await Promise.race([Bun.sleep(pauseMs), this.#stopped.promise]);
      if (this.#isStopping) return;
      healthyFromMs = (await this.#startOnce()) === null ? performance.now() : null;
    }
  }

  /** Starts the server once; returns why it is not healthy, null if it is. A server that is not healthy in time is killed. */
  async #startOnce(): Promise<string | null> {
    const { logPath, command, env, startMsMax } = this.spec;
    const output = openLog(logPath);
    const group = new ProcessGroup({ command, env, output });
    closeSync(output);
    this.#group = group;
    this.#notify({ kind: "started", pid: group.pid });
    const fromMs = performance.now();
    let toldMs = fromMs;
    while (!group.hasEnded) {
      const nowMs = performance.now();
      if (await this.#isHealthy()) {
        this.#notify({ kind: "healthy", seconds: rounded(performance.now() - fromMs) });
        return null;
      }
      if (this.#isStopping) return "it was stopped";
      if (nowMs - fromMs > startMsMax) {
        await group.stop(0);
        return `it was not healthy after ${Math.round(startMsMax / 1000)} s`;
      }
      if (nowMs - toldMs >= WAITING_TOLD_MS) {
        toldMs = nowMs;
        const [line = null] = tailOf(logPath, 1);
        this.#notify({ kind: "starting", seconds: rounded(nowMs - fromMs), last_line: line });
      }
      await Promise.race([Bun.sleep(HEALTH_PAUSE_MS), group.ended, this.#stopped.promise]);
    }
    const how = await group.ended;
    await group.clear();
    return `it ended with ${how}`;
  }

  async #isHealthy(): Promise<boolean> {
    const answer = await getOnce({ url: this.spec.url, token: null }, "/health", HEALTH_MS_MAX);
    return statusProblem(answer) === null;
  }
}

function rounded(ms: number): number {
  return Math.round(ms / 100) / 10;
}
