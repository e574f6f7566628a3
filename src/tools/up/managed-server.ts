// Keeps one server running: starts it, waits until it is healthy, restarts it with growing pauses when it ends, and
// stops it with all its processes. Its output goes to a log file, whose last lines are reported when it dies.

import { closeSync } from "node:fs";
import { AppError } from "../../core/base/errors.ts";
import { getOnce, statusProblem } from "../../engines/vllm/http.ts";
import { openLog, ProcessGroup, tailOf } from "./process-group.ts";

export interface BackoffLimits {
  /** Pause in ms before the first restart; it doubles with each run that was too short. */
  readonly firstMs: number;
  readonly msMax: number;
  /** Time in ms after which a healthy run resets the count of failures. */
  readonly goodMs: number;
  /** Limit of consecutive unhealthy runs; then the program is given up. */
  readonly failuresMax: number;
}

/** A server starts in 16 to 80 s, so that a pause of 60 s does not add much; ten tries are about ten minutes. */
const BACKOFF: BackoffLimits = { firstMs: 500, msMax: 60_000, goodMs: 60_000, failuresMax: 10 };

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
  /** Runs in a row that were too short. */
  #failures = 0;
  #group: ProcessGroup | null = null;
  #isStopping = false;
  /** Resolves when the server is to stop, which ends a pause. */
  readonly #stopped = Promise.withResolvers<void>();
  #kept: Promise<void> | null = null;

  constructor(spec: ServerSpec, notify: (event: ServerEvent) => void) {
    this.spec = spec;
    this.#notify = notify;
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
      const tail = await tailOf(this.spec.logPath, LINES_REPORTED);
      const lines = tail.map((line) => `\n  ${line}`);
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
      this.#notify({ kind: "died", how, lines: await tailOf(this.spec.logPath, LINES_REPORTED) });
      const healthyMs = healthyFromMs === null ? 0 : performance.now() - healthyFromMs;
      const pauseMs = this.#pauseAfter(healthyMs);
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

  /** The pause in ms after a run that was healthy for `healthyMs`; null: the program is given up. */
  #pauseAfter(healthyMs: number): number | null {
    const { firstMs, msMax, goodMs, failuresMax } = this.spec.backoff ?? BACKOFF;
    this.#failures = healthyMs >= goodMs ? 1 : this.#failures + 1;
    if (this.#failures > failuresMax) return null;
    return Math.min(msMax, firstMs * 2 ** (this.#failures - 1));
  }

  /** Starts the server once; returns why it is not healthy, null if it is. A server that is not healthy in time is killed. */
  async #startOnce(): Promise<string | null> {
    const { logPath, command, env, startMsMax, url } = this.spec;
    const output = openLog(logPath);
    const group = new ProcessGroup({ command, env, output });
    closeSync(output);
    this.#group = group;
    this.#notify({ kind: "started", pid: group.pid });
    const fromMs = performance.now();
    let toldMs = fromMs;
    while (!group.hasEnded) {
      const nowMs = performance.now();
      const health = await getOnce({ url, token: null }, "/health", HEALTH_MS_MAX);
      if (statusProblem(health) === null) {
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
        const [line = null] = await tailOf(logPath, 1);
        this.#notify({ kind: "starting", seconds: rounded(nowMs - fromMs), last_line: line });
      }
      await Promise.race([Bun.sleep(HEALTH_PAUSE_MS), group.ended, this.#stopped.promise]);
    }
    const how = await group.ended;
    await group.clear();
    return `it ended with ${how}`;
  }
}

function rounded(ms: number): number {
  return Math.round(ms / 100) / 10;
}
