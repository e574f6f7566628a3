// Runs a target in a process of its own, and starts another one behind the input at which it crashed or hung.
// Samples the process's memory all the while.

import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { ChildOptions } from "./child.ts";
import { Progress } from "./progress.ts";
import type { Finding } from "./run.ts";

export interface Supervised extends Omit<ChildOptions, "progress"> {
  /** An input that takes longer has hung, or its machine was busy. */
  readonly hangMs: number;
}

export interface Outcome {
  readonly name: string;
  readonly inputs: number;
  readonly seconds: number;
  readonly failures: readonly Finding[];
  readonly crashes: readonly Finding[];
  readonly hangs: readonly Finding[];
  readonly rssMibMax: number;
}

const SAMPLE_MS = 200;
const PAGE_BYTES = 4096;
const MIB = 2 ** 20;
const LOG_CHARACTERS_MAX = 4_000;
const CHILD = join(import.meta.dir, "child.ts");

interface Part {
  readonly findings: readonly Finding[];
  /** Index at which another process continues; null: all inputs are done. */
  readonly next: number | null;
  readonly died: { kind: "crash" | "hang"; finding: Finding } | null;
  readonly taken: number;
  readonly rssMibMax: number;
}

export async function supervise(options: Supervised): Promise<Outcome> {
  const startMs = performance.now();
  const parts: Part[] = [];
  const count = () => parts.reduce((sum, one) => sum + one.findings.length + (one.died ? 1 : 0), 0);
  let inputs = 0;
  for (let from: number | null = options.from; from !== null && count() < options.findingsMax; ) {
    const part: Part = await runPart({ ...options, from });
    parts.push(part);
    inputs += part.taken;
    from = part.next;
  }
  const died = parts.flatMap(({ died: one }) => one ?? []);
  return {
    name: options.name,
    inputs,
    seconds: (performance.now() - startMs) / 1000,
    failures: parts.flatMap(({ findings }) => findings),
    crashes: died.filter(({ kind }) => kind === "crash").map(({ finding }) => finding),
    hangs: died.filter(({ kind }) => kind === "hang").map(({ finding }) => finding),
    rssMibMax: Math.max(0, ...parts.map((part) => part.rssMibMax)),
  };
}

async function runPart(options: Supervised): Promise<Part> {
  const folder = mkdtempSync(join(tmpdir(), "foretoken-fuzz-"));
  const path = join(folder, "progress");
  const progress = Progress.create(path);
  const { module, name, seed, from, to, findingsMax } = options;
  const given: ChildOptions = { module, name, seed, from, to, findingsMax, progress: path };
  const child = Bun.spawn([process.execPath, CHILD, JSON.stringify(given)], {
    stdout: "pipe",
    stderr: "pipe",
  });
  const output = new Response(child.stdout).text();
  const log = new Response(child.stderr).text();
  let rssMibMax = 0;
  let hung: number | null = null;
  const timer = setInterval(() => {
    rssMibMax = Math.max(rssMibMax, residentMib(child.pid));
    const latest = Date.now() - options.hangMs;
    const late = progress.running().filter(({ sinceMs }) => sinceMs < latest);
    if (late.length === 0 || hung !== null) return;
    hung = Math.min(...late.map(({ index }) => index));
    child.kill("SIGKILL");
  }, SAMPLE_MS);
  const exitCode = await child.exited;
  clearInterval(timer);
  const taken = progress.started;
  const running = progress.running();
  rmSync(folder, { recursive: true, force: true });
  const findings = parsed(await output);
  if (exitCode === 0) return { findings, next: null, died: null, taken, rssMibMax };
  const reason = (await log).slice(-LOG_CHARACTERS_MAX);
  const others = running.map(({ index }) => index).sort((a, b) => a - b);
  const index = hung ?? others.at(-1) ?? from;
  const problem =
    hung === null
      ? `the process ended with ${child.signalCode ?? exitCode}: ${reason}`
      : `no end after ${options.hangMs} ms`;
  const input = `in flight: ${others.join(", ")}`;
  const kind = hung === null ? ("crash" as const) : ("hang" as const);
  // Where nothing began, no other process would get further.
  const next = taken === 0 ? null : Math.max(index, ...others) + 1;
  return {
    findings,
    next: next !== null && next < to ? next : null,
    died: { kind, finding: { index, problem, input } },
    taken,
    rssMibMax,
  };
}

function parsed(output: string): Finding[] {
  const lines = output.split("\n").filter((line) => line.startsWith('{"index"'));
  return lines.map((line) => JSON.parse(line) as Finding);
}

/** 0: the process has gone. */
function residentMib(pid: number): number {
  try {
    const [, pages] = readFileSync(`/proc/${pid}/statm`, "utf8").split(" ");
    return (Number(pages) * PAGE_BYTES) / MIB;
  } catch {
    return 0;
  }
}
