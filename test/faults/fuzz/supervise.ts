// Runs a target in a process of its own, which is this file as a program, and starts another one behind the input at which it
// crashed or hung. Which inputs run is in a file that both have mapped: it is readable even while the process hangs, or
// after it has died.

import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { type Finding, type RunRange, runTarget } from "./run.ts";
import type { FuzzTarget } from "./target.ts";

export interface Supervised extends RunRange {
  /** Exports `targets`. */
  readonly module: string;
  readonly name: string;
  /** An input that takes longer has hung, or its machine was busy. */
  readonly hangMs: number;
}

export interface Outcome {
  readonly inputs: number;
  readonly seconds: number;
  readonly failures: readonly Finding[];
  readonly crashes: readonly Finding[];
  readonly hangs: readonly Finding[];
  readonly rssMibMax: number;
}

const SAMPLE_MS = 200;
const LOG_CHARACTERS_MAX = 4_000;
/** Maximum of inputs that run at the same time. */
const SLOTS_MAX = 64;
/** Inputs between two garbage collections, so that memory figures do not depend on the collector. */
const COLLECT_EVERY = 20_000;

/** The number of inputs that were started, then of each slot the index of its input and since when it runs, ms; 0: none does. */
function progressIn(path: string): Float64Array {
  const bytes = Bun.mmap(path, { shared: true });
  return new Float64Array(bytes.buffer, bytes.byteOffset, 1 + 2 * SLOTS_MAX);
}

function running(progress: Float64Array): { index: number; sinceMs: number }[] {
  const slots = Array.from({ length: SLOTS_MAX }, (_, slot) => ({
    index: progress[1 + 2 * slot] ?? 0,
    sinceMs: progress[2 + 2 * slot] ?? 0,
  }));
  return slots.filter(({ sinceMs }) => sinceMs > 0).sort((a, b) => a.index - b.index);
}

export async function supervise(options: Supervised): Promise<Outcome> {
  const startMs = performance.now();
  const [failures, crashes, hangs]: [Finding[], Finding[], Finding[]] = [[], [], []];
  const folder = mkdtempSync(join(tmpdir(), "foretoken-fuzz-"));
  const path = join(folder, "progress");
  let inputs = 0;
  let rssMibMax = 0;
  let next: number | null = options.from;
  while (next !== null && failures.length + crashes.length + hangs.length < options.findingsMax) {
    const from: number = next;
    writeFileSync(path, new Uint8Array(8 * (1 + 2 * SLOTS_MAX)));
    const progress = progressIn(path);
    const child = Bun.spawn(
      [process.execPath, import.meta.path, JSON.stringify({ ...options, from }), path],
      { stdout: "pipe", stderr: "pipe" },
    );
    const [output, log] = [new Response(child.stdout).text(), new Response(child.stderr).text()];
    let hung: number | null = null;
    const timer = setInterval(() => {
      const latest = Date.now() - options.hangMs;
      const late = running(progress).find(({ sinceMs }) => sinceMs < latest);
      if (late === undefined || hung !== null) return;
      hung = late.index;
      child.kill("SIGKILL");
    }, SAMPLE_MS);
    const exitCode = await child.exited;
    clearInterval(timer);
    const started = progress[0] ?? 0;
    inputs += started;
    rssMibMax = Math.max(rssMibMax, (child.resourceUsage()?.maxRSS ?? 0) / 2 ** 20);
    const lines = (await output).split("\n").filter((line) => line.startsWith('{"index"'));
    failures.push(...lines.map((line): Finding => JSON.parse(line)));
    const others = running(progress).map(({ index }) => index);
    const last = others.at(-1) ?? from;
    const input = `in flight: ${others.join(", ")}`;
    if (hung !== null) {
      hangs.push({ index: hung, problem: `no end after ${options.hangMs} ms`, input });
    } else if (exitCode !== 0) {
      const reason = `${child.signalCode ?? exitCode}: ${(await log).slice(-LOG_CHARACTERS_MAX)}`;
      crashes.push({ index: last, problem: `the process ended with ${reason}`, input });
    }
    // Where nothing began, no other process would get further.
    next = exitCode === 0 || started === 0 || last + 1 >= options.to ? null : last + 1;
  }
  rmSync(folder, { recursive: true, force: true });
  const seconds = (performance.now() - startMs) / 1000;
  return { inputs, seconds, failures, crashes, hangs, rssMibMax };
}

/** Findings go to stdout, a line of JSON each. */
async function runHere(options: Supervised, path: string): Promise<void> {
  const { targets } = (await import(resolve(options.module))) as { targets: FuzzTarget[] };
  const found = targets.find(({ name }) => name === options.name);
  if (found === undefined) throw new Error(`there is no target ${options.name}`);
  const progress = progressIn(path);
  await runTarget(found, {
    ...options,
    started: (index, slot) => {
      if (index % COLLECT_EVERY === 0) Bun.gc(true);
      progress[0] = (progress[0] ?? 0) + 1;
      progress[1 + 2 * slot] = index;
      progress[2 + 2 * slot] = Date.now();
    },
    ended: (slot) => {
      progress[2 + 2 * slot] = 0;
    },
    found: (finding) => console.log(JSON.stringify(finding)),
  });
}

if (import.meta.main) {
  const [, , options = "", path = ""] = process.argv;
  await runHere(JSON.parse(options), path);
  process.exit(0);
}
