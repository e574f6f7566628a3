// Two real vLLM servers behind the sidecar, started with `foretoken up` as its user would, for the tests beside this
// file; and what they ask of the sidecar and of the servers themselves.

import { mkdtempSync, readFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { AppError } from "../../src/core/base/errors.ts";
import { Engine } from "../../src/tools/doctor/engine.ts";
import type { Diagnosis, Finding } from "../../src/tools/doctor/finding.ts";
import { findVllm } from "../../src/tools/up/find-vllm.ts";
import { foretoken } from "../e2e/tool.ts";
import { writeOtherSafetensors } from "../faults/chaos/weights.ts";
import { ToolProcess } from "../faults/process.ts";
import { linesOf } from "../suite/lines.ts";

export const ROOT = join(import.meta.dir, "..", "..");
export const MODEL = join(ROOT, "model", "hf");
export const PYTHON = join(import.meta.dir, "python");
export const TRITON = join(ROOT, ".cache", "vllm", "triton");
/** Environment of vLLM's second model runner where there is no GPU: Triton's interpreter runs its kernels. */
export const INTERPRETER = {
  PYTHONPATH: [TRITON, join(import.meta.dir, "interpreter"), PYTHON].join(":"),
  TRITON_INTERPRET: "1",
};
/** Length of a chunk; most responses of the bundled model are longer. */
export const CHUNK_TOKENS = 32;
/**
 * Length of a response: some blocks of KV (32 tokens on CPU) beside a short prompt, so that continuations find some in
 * the prefix cache.
 */
export const MAX_TOKENS = 256;

const SCRIPT_MS_MAX = 300_000;

/** null, or why no vLLM can run here. */
export function vllmMissing(): string | null {
  try {
    findVllm(process.env.FORETOKEN_VLLM ?? null, ROOT);
    return null;
  } catch (error) {
    if (error instanceof AppError) return error.message;
    throw error;
  }
}

/** Output of a script in python/ that vLLM's interpreter runs. @throws Error, with its output, if it fails. */
export function scripted(command: readonly string[], env: NodeJS.Dict<string> = {}): string {
  const [name = "", ...args] = command;
  const { python } = findVllm(process.env.FORETOKEN_VLLM ?? null, ROOT);
  const ran = Bun.spawnSync([python, join(PYTHON, name), ...args], {
    env: { ...process.env, VLLM_LOGGING_LEVEL: "ERROR", ...env },
    timeout: SCRIPT_MS_MAX,
  });
  const end = ran.exitedDueToTimeout ? `no end in ${SCRIPT_MS_MAX / 1000} s` : ran.exitCode;
  if (end !== 0) throw new Error(`${name}: ${end}\n${ran.stdout}${ran.stderr}`);
  return ran.stdout.toString().trim();
}

/** A line of `foretoken up`'s log. */
export interface LogEntry {
  readonly event: string;
  readonly name?: string;
  readonly port?: number;
  readonly pid?: number;
  readonly worker?: string;
  readonly state?: string;
  readonly reason?: string | null;
  /** Address of the KV pool's master. */
  readonly admin?: string;
}

export interface Choice {
  readonly index: number;
  readonly token_ids: number[];
  readonly finish_reason: string;
  readonly logprobs: { readonly token_logprobs: number[] } | null;
  readonly weight_versions: { version: string; start: number; end: number }[];
}

/** A response as /v1/rollouts tells of it. */
export interface Line {
  readonly group: string;
  readonly index: number;
  readonly prompt_token_ids: number[];
  readonly token_ids: number[];
  readonly logprobs: number[];
  readonly finish_reason: string;
  readonly weight_epoch: number;
  readonly chunks: { readonly worker: number; readonly offset: number; readonly tokens: number }[];
}

/** The last line of a rollout. */
export interface RolloutSummary {
  readonly rollout: string;
  readonly state: string;
  readonly report: {
    readonly wall_s: number;
    readonly output_tokens: number;
    readonly chunks: number;
    readonly migrations: number;
    readonly restarts: number;
  };
}

const POLL_MS = 50;
const CALL_MS_MAX = 600_000;

export const metricsOf = (urls: readonly string[]): Promise<string[]> =>
  Promise.all(urls.map(async (url) => await (await fetch(`${url}/metrics`)).text()));

export class Fleet extends ToolProcess {
  /** What is no entry of the log is an event by its text. */
  readonly log: LogEntry[] = [];

  /** Resolves when the sidecar serves. */
  static async up(
    args: readonly string[],
    env: Readonly<Record<string, string>> = {},
  ): Promise<Fleet> {
    const own = ["--port", "0", "--log", "json", "--logs", join(ROOT, "out", "test-vllm")];
    const fleet = new Fleet(["up", ...own, ...args], { env });
    await fleet.listens(CALL_MS_MAX);
    return fleet;
  }

  protected override took(line: string): void {
    this.log.push(line.startsWith("{") ? JSON.parse(line) : { event: line });
  }

  /** The servers' newest process groups, by name. */
  get servers(): { name: string; url: string; pid: number }[] {
    const newest = new Map<string, { name: string; url: string; pid: number }>();
    for (const { event, name, port, pid } of this.log) {
      if (event !== "server_started" || pid === undefined || !name?.startsWith("vllm-")) continue;
      newest.set(name, { name, url: `http://127.0.0.1:${port}`, pid });
    }
    return [...newest.values()];
  }

  /** Process groups of all children: the servers, and the KV pool's master. */
  get processGroups(): number[] {
    const newest = new Map<string, number>();
    for (const { event, name = "", pid } of this.log) {
      if (event === "server_started" && pid !== undefined) newest.set(name, pid);
    }
    return [...newest.values()];
  }

  /** A server without the sidecar. */
  plain(index: number): Engine {
    return new Engine(this.servers[index]?.url ?? "", null);
  }

  async call(method: "GET" | "POST", path: string, body: unknown = null): Promise<Response> {
    const headers = { "content-type": "application/json" };
    const sent = body === null ? {} : { body: JSON.stringify(body), headers };
    // A rollout takes as long as it takes; the test's own limit ends it.
    return await this.http.call(path, {
      method,
      ...sent,
      signal: AbortSignal.timeout(CALL_MS_MAX),
    });
  }

  async complete(body: object): Promise<Choice[]> {
    const answer = await this.call("POST", "/v1/completions", {
      model: MODEL,
      max_tokens: MAX_TOKENS,
      return_token_ids: true,
      logprobs: 0,
      ...body,
    });
    if (answer.status !== 200) throw new Error(`${answer.status}: ${await answer.text()}`);
    return ((await answer.json()) as { choices: Choice[] }).choices;
  }

  /** The lines of a rollout as they come; the last one is its summary. */
  async *rollout(body: object): AsyncGenerator<Line | RolloutSummary> {
    const answer = await this.call("POST", "/v1/rollouts", body);
    if (answer.status !== 200 || answer.body === null) throw new Error(await answer.text());
    for await (const line of linesOf(answer.body)) if (line !== "") yield JSON.parse(line);
  }

  /** Output tokens that a rollout has so far; 0: it has not begun. */
  async progress(id: string): Promise<number> {
    const answer = await this.call("GET", `/v1/rollouts/${id}`);
    if (answer.status !== 200) return 0;
    const { progress } = (await answer.json()) as { progress: { output_tokens: number } };
    return progress.output_tokens;
  }

  /** Sum of a metric's samples: of the sidecar, of the servers themselves, or of one of them. 0: it is not there. */
  async metric(name: string, of: "sidecar" | "servers" | number): Promise<number> {
    const servers = this.servers.map(({ url }) => url);
    const urls =
      of === "sidecar" ? [this.url] : of === "servers" ? servers : servers.slice(of, of + 1);
    const texts = await metricsOf(urls);
    const lines = new RegExp(`^${name}(?:\\{[^}]*\\})? (\\S+)`, "gm");
    const values = texts.flatMap((text) => [...text.matchAll(lines)].map(([, v]) => Number(v)));
    return values.reduce((sum, value) => sum + value, 0);
  }

  /** Resolves when it holds; looks now and then. */
  async until(holds: () => Promise<boolean>): Promise<void> {
    while (!(await holds())) await Bun.sleep(POLL_MS);
  }

  async workerStates(): Promise<string[]> {
    return (await this.http.workers()).map(({ state }) => state);
  }

  /** Waits until the log holds what is looked for, from entry `from` on. */
  async heard(isIt: (entry: LogEntry) => boolean, from = 0): Promise<LogEntry> {
    for (;;) {
      const found = this.log.slice(from).find(isIt);
      if (found !== undefined) return found;
      await Bun.sleep(POLL_MS);
    }
  }

  /** Stops the fleet like Ctrl-C. Returns the exit status. */
  async stop(): Promise<number> {
    this.signal("SIGINT");
    return await this.exited;
  }
}

/** Token ids of the bundled prompts, first `count`. */
export async function promptIds(fleet: Fleet, count: number): Promise<number[][]> {
  const text = await Bun.file(join(ROOT, "model", "prompts.jsonl")).text();
  const prompts = text
    .split("\n")
    .filter((line) => line !== "")
    .slice(0, count)
    .map((line): string => JSON.parse(line).prompt);
  const engine = fleet.plain(0);
  return await Promise.all(prompts.map((prompt) => engine.tokenize(JSON.stringify({ prompt }))));
}

/** Processes of the group that have not ended. */
export function livingIn(group: number): number[] {
  const { stdout } = Bun.spawnSync(["ps", "-eo", "pid=,pgid=,stat="]);
  return stdout
    .toString()
    .split("\n")
    .map((line) => line.trim().split(/\s+/))
    .filter(([, pgid, stat]) => Number(pgid) === group && !stat?.startsWith("Z"))
    .map(([pid]) => Number(pid));
}

/** Memory of process groups, MiB: what they share is divided among them (PSS). */
export function memoryMib(groups: readonly number[]): number {
  const kib = groups.flatMap(livingIn).map((pid) => {
    try {
      const text = readFileSync(`/proc/${pid}/smaps_rollup`, "utf8");
      return Number(/^Pss:\s+(\d+)/m.exec(text)?.[1] ?? 0);
    } catch {
      // It has ended.
      return 0;
    }
  });
  return Math.round(kib.reduce((sum, pss) => sum + pss, 0) / 1024);
}

/**
 * Writes a copy of the bundled model whose last norm is scaled: the logits are `scale` times as large, so that at temperature 1 it draws
 * as the bundled model does at temperature 1 / scale. Returns its directory.
 */
export function scaledModel(scale: number): string {
  const folder = mkdtempSync(join(tmpdir(), "foretoken-weights-"));
  writeOtherSafetensors(MODEL, folder, scale);
  return folder;
}

/** What `foretoken doctor` finds of a server that is there. */
export async function examined(url: string): Promise<{ status: number; findings: Finding[] }> {
  const ran = await foretoken("doctor", url, "--json", "--quiet", "--samples", "2048");
  const { engines } = JSON.parse(ran.stdout) as { engines: Diagnosis[] };
  return { status: ran.status, findings: [...(engines[0]?.findings ?? [])] };
}

/** The checks that ended so. */
export function named(findings: readonly Finding[], verdict: Finding["verdict"]): string[] {
  return findings.filter((finding) => finding.verdict === verdict).map(({ check }) => check);
}
