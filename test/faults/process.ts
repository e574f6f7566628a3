// A process of the tool, as tests, attacks and chaos runs see it: its lines, its signals, where it listens, and how it
// answers while it is attacked.

import { readFileSync } from "node:fs";
import { join } from "node:path";
import { assert } from "../../src/core/base/assert.ts";
import { AppError } from "../../src/core/base/errors.ts";
import { linesOf } from "../suite/lines.ts";
import { HttpClient, until } from "./http-client.ts";
import type { StandInOptions } from "./stand-in/vllm-stand-in.ts";

/** Deadline of a start on a busy machine. */
export const START_MS_MAX = 300_000;
const LINES_KEPT = 5_000;
const POLL_MS = 5;
const PAGE_BYTES = 4096;
/** Deadline of /health under attack: attack, engine and server share the machine. */
const HEALTH_MS_MAX = 60_000;

const PROGRAM = [process.execPath, join(import.meta.dir, "..", "..", "src", "main.ts")];
const STAND_IN = [process.execPath, join(import.meta.dir, "stand-in", "program.ts")];

/** A stand-in for a vLLM server as a process of its own. It listens when it has said so. */
export function startStandIn(options: Partial<StandInOptions> = {}): ToolProcess {
  return new ToolProcess(["--stand-in", JSON.stringify(options)], { program: STAND_IN });
}

interface ProcessOptions {
  /** Command to start; default: the tool. */
  readonly program?: readonly string[];
  readonly env?: Readonly<Record<string, string>>;
}

export class ToolProcess {
  /** Last lines of both outputs. */
  readonly lines: string[] = [];
  readonly #child;
  #isStopped = false;
  #isKilled = false;
  #http: HttpClient | null = null;
  readonly #outputs: Promise<unknown>;

  constructor(args: readonly string[], { program = PROGRAM, env = {} }: ProcessOptions = {}) {
    this.#child = Bun.spawn([...program, ...args], {
      env: { ...process.env, FORETOKEN_PARENT: `${process.pid}`, ...env },
      stdin: "ignore",
      stdout: "pipe",
      stderr: "pipe",
    });
    const { stdout, stderr } = this.#child;
    this.#outputs = Promise.all([this.#read(stdout), this.#read(stderr)]);
  }

  /** Resolves when it says where it listens. */
  static async listening(...args: string[]): Promise<ToolProcess> {
    const one = new ToolProcess(args);
    await one.listens();
    return one;
  }

  /** `foretoken serve` that serves, with one embedded engine unless `args` name workers. */
  static async serving(...args: string[]): Promise<ToolProcess> {
    const engines = args.includes("--worker") || args.includes("--llama") ? [] : ["--llama", "1"];
    const one = await ToolProcess.listening("serve", ...engines, "--port", "0", ...args);
    const token = args[args.indexOf("--api-token") + 1];
    const headers = args.includes("--api-token") ? { authorization: `Bearer ${token}` } : {};
    const isHealthy = async () => (await one.http.call("/health", { headers })).status === 200;
    await until(
      () => one.hasEnded || isHealthy(),
      () => one.text,
      START_MS_MAX,
    );
    if (one.hasEnded) throw new Error(`it ended: ${one.text}`);
    return one;
  }

  async listens(msMax = START_MS_MAX): Promise<string> {
    const said = await this.said(/^(?:foretoken|stand-in|draft server) on (\S+)/, msMax);
    const [, url = ""] = said ?? [];
    this.#http = new HttpClient(url);
    return url;
  }

  /** Once it listens. */
  get http(): HttpClient {
    if (this.#http === null) throw new Error(`it does not listen: ${this.text}`);
    return this.#http;
  }

  /** The URL that the process printed. */
  get url(): string {
    return this.http.url.href.replace(/\/$/, "");
  }

  get pid(): number {
    return this.#child.pid;
  }

  /** The process runs and is not held by SIGSTOP. */
  get isRunning(): boolean {
    return !this.hasEnded && !this.#isStopped;
  }

  get hasEnded(): boolean {
    return this.#child.exitCode !== null || this.#child.signalCode !== null;
  }

  /** Resolves with the status when it has ended and its last lines are here. */
  get exited(): Promise<number> {
    return this.#outputs.then(() => this.#child.exited);
  }

  /** The lines as one text. */
  get text(): string {
    return this.lines.join("\n");
  }

  get residentMib(): number {
    const [, pages] = readFileSync(`/proc/${this.pid}/statm`, "utf8").split(" ");
    return (Number(pages) * PAGE_BYTES) / 2 ** 20;
  }

  /** The first line that matches. */
  line(pattern: RegExp): string | null {
    return this.lines.find((line) => pattern.test(line)) ?? null;
  }

  signal(name: NodeJS.Signals): void {
    this.#child.kill(name);
  }

  async kill(): Promise<void> {
    this.#isKilled = true;
    this.#child.kill("SIGKILL");
    await this.#child.exited;
  }

  /** SIGSTOP, and SIGCONT after `ms`. */
  async stopFor(ms: number): Promise<void> {
    this.#isStopped = true;
    this.#child.kill("SIGSTOP");
    await Bun.sleep(ms);
    this.#child.kill("SIGCONT");
    this.#isStopped = false;
  }

  /**
   * Resolves with the match when a line matches, or null when it was killed here.
   * @throws AppError worker_failed: it ended by itself, or took too long.
   */
  async said(pattern: RegExp, msMax = START_MS_MAX): Promise<RegExpExecArray | null> {
    for (const endMs = performance.now() + msMax; ; await Bun.sleep(POLL_MS)) {
      if (this.hasEnded) await this.#outputs;
      const line = this.line(pattern);
      if (line !== null) return pattern.exec(line);
      if (this.#isKilled) return null;
      if (!this.hasEnded && performance.now() < endMs) continue;
      const what = this.hasEnded ? "a process ended" : `a process took longer than ${msMax} ms`;
      const tail = this.lines.slice(-5).join(" | ");
      throw new AppError("worker_failed", `${what} before it said ${pattern}: ${tail}`);
    }
  }

  /**
   * Runs an attack, asking for /health all the while. Afterwards it still runs and answers as before. Returns by how much
   * its memory grew, in MiB.
   */
  async survives(attack: () => Promise<unknown>): Promise<number> {
    const good = await this.goodTokens();
    const before = this.residentMib;
    let isOver = false;
    const watching = (async () => {
      while (!isOver) {
        const startMs = performance.now();
        assert((await this.http.status("/health")) === 200, "/health is 200 under attack");
        assert(performance.now() - startMs < HEALTH_MS_MAX, "/health answers in time");
        await Bun.sleep(10);
      }
    })();
    try {
      await attack();
    } finally {
      isOver = true;
      await watching;
    }
    assert(!this.hasEnded, "it lives on");
    assert(`${await this.goodTokens()}` === `${good}`, "a good request is answered as before");
    return this.residentMib - before;
  }

  /** A good request: the tokens of its answer, which are the same every time. */
  async goodTokens(): Promise<readonly number[]> {
    return await this.http.tokens([11, 12, 13], {
      ...{ max_tokens: 16, temperature: 0, ignore_eos: true },
    });
  }

  /** Called with each line of both outputs. */
  protected took(_line: string): void {}

  async #read(stream: ReadableStream<Uint8Array>): Promise<void> {
    for await (const line of linesOf(stream)) {
      this.lines.push(line);
      this.took(line);
      if (this.lines.length > LINES_KEPT) this.lines.shift();
    }
  }
}
