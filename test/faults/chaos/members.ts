// The processes of a chaos run: the sidecar's, stand-ins', and vLLM servers, started and kept running as `foretoken up` does.
// They are killed and stopped on request, and run again afterwards.

import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import type { FoundVllm } from "../../../src/tools/up/find-vllm.ts";
import { launchOf } from "../../../src/tools/up/launch.ts";
import { ManagedServer } from "../../../src/tools/up/managed-server.ts";
import type { ToolProcess } from "../process.ts";

/** A server alone needs 16 to 80 s; on a machine with other work it takes much longer. */
const START_MS_MAX = 600_000;
const GRACE_MS = 5_000;
const POLL_MS = 50;
const LINES_KEPT = 20;
/** Short pauses: the chaos run kills the server, which is no failure of its own. */
const BACKOFF = { firstMs: 100, msMax: 100, goodMs: 0, failuresMax: 10 };

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

/** A process that is started again when it was killed, as a supervisor does. */
export class RestartedProcess implements Member {
  readonly port: number;
  readonly #start: () => ToolProcess;
  #process: ToolProcess;

  constructor(port: number, start: () => ToolProcess) {
    this.port = port;
    this.#start = start;
    this.#process = start();
  }

  get pid(): number {
    return this.#process.pid;
  }

  get isRunning(): boolean {
    return this.#process.isRunning;
  }

  get lines(): readonly string[] {
    return this.#process.lines;
  }

  /** Resolves as well when it is killed before. */
  async started(): Promise<void> {
    await this.#process.said(/^(?:foretoken|stand-in) on /);
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

export class VllmServer implements Member {
  readonly port: number;
  readonly url: string;
  readonly #server: ManagedServer;
  readonly #logPath: string;
  readonly #starting: Promise<void>;
  #isHealthy = false;
  #isStopped = false;
  #hasGivenUp = false;

  constructor(options: {
    found: FoundVllm;
    /** A Hugging Face directory. */
    model: string;
    host: string;
    port: number;
    /** CUDA_VISIBLE_DEVICES of the server; null: it computes on the CPU. */
    gpus: string | null;
    contextTokens: number;
    /** Folder of the server's log. */
    folder: string;
  }) {
    const { found, host, port, folder, ...rest } = options;
    this.port = port;
    this.url = `http://${host}:${port}`;
    this.#logPath = join(folder, `vllm-${port}.log`);
    const launch = launchOf({
      ...{ command: found.command, build: found.build, host, port, ...rest },
      servedName: null,
      apiKey: null,
      plugin: null,
      pool: null,
      extraArgs: [],
    });
    this.#server = new ManagedServer(
      {
        ...{ name: `vllm-${port}`, url: this.url, command: launch.command },
        env: { ...launch.envDefaults, ...process.env, ...launch.env },
        ...{
          logPath: this.#logPath,
          startMsMax: START_MS_MAX,
          graceMs: GRACE_MS,
          backoff: BACKOFF,
        },
      },
      ({ kind }) => {
        if (kind === "healthy") this.#isHealthy = true;
        if (kind === "died" || kind === "started") this.#isHealthy = false;
        if (kind === "gave_up") this.#hasGivenUp = true;
      },
    );
    this.#starting = this.#server.start();
    // It is thrown by `started`.
    this.#starting.catch(() => undefined);
  }

  get isRunning(): boolean {
    return this.#isHealthy && !this.#isStopped;
  }

  get lines(): readonly string[] {
    const text = existsSync(this.#logPath) ? readFileSync(this.#logPath, "utf8") : "";
    return text.trimEnd().split("\n").slice(-LINES_KEPT);
  }

  async started(): Promise<void> {
    await this.#starting;
  }

  async killFor(): Promise<void> {
    this.#isHealthy = false;
    this.#signal("SIGKILL");
    for (const endMs = performance.now() + START_MS_MAX; performance.now() < endMs; ) {
      await Bun.sleep(POLL_MS);
      if (this.#isHealthy || this.#hasGivenUp) return;
    }
  }

  async stopFor(ms: number): Promise<void> {
    this.#isStopped = true;
    this.#signal("SIGSTOP");
    await Bun.sleep(ms);
    this.#signal("SIGCONT");
    this.#isStopped = false;
  }

  async close(): Promise<void> {
    await this.#server.stop();
  }

  /** Sends a signal to the server and all its children. */
  #signal(name: "SIGKILL" | "SIGSTOP" | "SIGCONT"): void {
    const { pid } = this.#server;
    if (pid === null) return;
    try {
      process.kill(-pid, name);
    } catch {
      // It has ended meanwhile.
    }
  }
}
