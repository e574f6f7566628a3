// A sidecar and its linked workers as processes of their own, what they say, and what a client sees of them.

import { linesOf } from "../suite/lines.ts";
import { start } from "./tool.ts";

const POLL_MS = 5;

/** One process, and when it said what. */
export class Proc {
  readonly child: ReturnType<typeof start>;
  readonly lines: { readonly atMs: number; readonly text: string }[] = [];

  constructor(args: readonly string[]) {
    this.child = start(args);
    void this.#read(this.child.stdout);
    void this.#read(this.child.stderr);
  }

  kill(signal: NodeJS.Signals): void {
    this.child.kill(signal);
  }

  async end(): Promise<void> {
    this.child.kill("SIGCONT");
    this.child.kill("SIGKILL");
    await this.child.exited;
  }

  /** The first line from number `from` on that matches. */
  line(pattern: RegExp, from = 0): { readonly atMs: number; readonly text: string } | null {
    return this.lines.slice(from).find(({ text }) => pattern.test(text)) ?? null;
  }

  async #read(stream: ReadableStream<Uint8Array>): Promise<void> {
    for await (const text of linesOf(stream)) this.lines.push({ atMs: performance.now(), text });
  }
}

/** Resolves with the milliseconds that it took. */
export async function untilTrue(
  isTrue: () => boolean | Promise<boolean>,
  what: string,
  msMax = 120_000,
): Promise<number> {
  const startMs = performance.now();
  while (!(await isTrue())) {
    if (performance.now() - startMs > msMax) throw new Error(`waited ${msMax} ms for ${what}`);
    await Bun.sleep(POLL_MS);
  }
  return performance.now() - startMs;
}

/** Deterministic engines, so that what a fault must not change can be compared bit for bit. */
const ENGINE = [
  "--deterministic",
  "--slots",
  "8",
  "--kv-tokens",
  "16384",
  "--max-model-len",
  "1024",
];

export async function startWorker(port: number, ...args: string[]): Promise<Proc> {
  const worker = new Proc(["worker", "--listen", `127.0.0.1:${port}`, ...ENGINE, ...args]);
  await untilTrue(() => worker.line(/^worker on /) !== null, "a worker");
  return worker;
}

export async function startSidecar(
  ports: readonly number[],
  ...args: string[]
): Promise<{ proc: Proc; url: string }> {
  const workers = ports.flatMap((port) => ["--worker", `ws://127.0.0.1:${port}`]);
  const proc = new Proc(["serve", "--port", "0", ...workers, ...args]);
  await untilTrue(() => proc.line(/^foretoken on /) !== null, `a sidecar: ${said(proc)}`);
  return { proc, url: proc.line(/^foretoken on /)?.text.replace("foretoken on ", "") ?? "" };
}

export function said({ lines }: Proc): string {
  return lines.map(({ text }) => text).join("\n");
}

export interface WorkerEntry {
  readonly state: string;
  readonly reason: string | null;
}

export async function workersOf(url: string): Promise<readonly WorkerEntry[]> {
  const answer = await fetch(new URL("/foretoken/workers", url));
  return ((await answer.json()) as { workers: WorkerEntry[] }).workers;
}

/** How many workers the metrics count in this state. */
export async function countIn(url: string, state: string): Promise<number> {
  const text = await (await fetch(new URL("/metrics", url))).text();
  return Number(
    new RegExp(`^foretoken_workers\\{state="${state}".*\\} (\\d+)$`, "m").exec(text)?.[1],
  );
}

/** Token ids of a response to prompt `n`, all of `tokensMax`. */
export async function generate(url: string, n: number, tokensMax: number): Promise<number[]> {
  const answer = await fetch(new URL("/inference/v1/generate", url), {
    method: "POST",
    body: JSON.stringify({
      token_ids: [5, 6, 7, 8 + n, 9],
      sampling_params: { max_tokens: tokensMax, ignore_eos: true, seed: n, temperature: 1 },
    }),
  });
  if (answer.status !== 200) throw new Error(`${answer.status} ${await answer.text()}`);
  const { choices } = (await answer.json()) as { choices: { token_ids: number[] }[] };
  return choices[0]?.token_ids ?? [];
}
