// What every bench shares: the seed, the conditions a result was taken under, ratio tables and JSON.

import { execFileSync } from "node:child_process";
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { cpus, loadavg } from "node:os";
import { dirname, relative } from "node:path";

export const SEED = 42;

/** With `--help` prints the comment that the bench at `path` begins with, and ends the process. */
export function helpFrom(path: string): void {
  if (!process.argv.includes("--help")) return;
  const [comment = ""] = readFileSync(path, "utf8").split(/^(?!\/\/)/m);
  console.log(comment.replaceAll(/^\/\/ ?/gm, ""));
  process.exit(0);
}

/** One measured quantity. Lower is better for every unit used here. */
export interface Measurement {
  readonly name: string;
  readonly unit: "ns" | "us" | "bytes";
  readonly value: number;
  /** The same work by something else, in the same run. */
  readonly baselines?: Readonly<Record<string, number>>;
  /** The value to stay at or below, if one is set. */
  readonly target?: number;
}

export interface Conditions {
  readonly commit: string;
  readonly runtime: string;
  readonly cpu: string;
  readonly cores: number;
  readonly load_1m: number;
  readonly seed: number;
}

export function conditions(): Conditions {
  let commit = "unknown";
  try {
    commit = execFileSync("git", ["rev-parse", "--short", "HEAD"], { encoding: "utf8" }).trim();
  } catch {
    // Not a checkout: the result says so.
  }
  const [cpu] = cpus();
  const machine = {
    cpu: cpu?.model ?? "unknown",
    cores: cpus().length,
    load_1m: loadavg()[0] ?? 0,
  };
  return { commit, runtime: `bun ${Bun.version}`, ...machine, seed: SEED };
}

function figure(value: number): string {
  return value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(2);
}

function row(cells: readonly string[]): string {
  const [name = "", ...rest] = cells;
  return `${name.padEnd(46)}${rest.map((cell) => cell.padStart(14)).join("")}`;
}

/** A line for each measurement: its value, its target, each baseline's value and how many times ours it is. */
export function ratioTable(measurements: readonly Measurement[]): string {
  const lines = [row(["", "ours", "target", "baseline", "ratio"])];
  for (const { name, unit, value, baselines = {}, target } of measurements) {
    const goal = target === undefined ? "" : `<= ${figure(target)}`;
    lines.push(row([name, `${figure(value)} ${unit}`, goal]));
    for (const [who, other] of Object.entries(baselines)) {
      lines.push(
        row([`  ${who}`, "", "", `${figure(other)} ${unit}`, `${figure(other / value)}x`]),
      );
    }
  }
  return lines.join("\n");
}

/** Writes a bench's report as JSON, with the command and the conditions of the run. Without a path nothing is written. */
export function writeReport(path: string | undefined, found: object): void {
  if (path === undefined) return;
  const command = ["bun", relative(process.cwd(), Bun.main), ...process.argv.slice(2)].join(" ");
  const report = { command, conditions: conditions(), ...found };
  mkdirSync(dirname(path), { recursive: true });
  writeFileSync(path, `${JSON.stringify(report, null, 2)}\n`);
}

/** The fastest of the runs of `work`, in ms: other load on the machine only ever adds. */
export function fastestMs(runs: number, work: () => void): number {
  let fastest = Number.POSITIVE_INFINITY;
  for (let run = 0; run < runs; run += 1) {
    const start = performance.now();
    work();
    fastest = Math.min(fastest, performance.now() - start);
  }
  return fastest;
}

/** A 32-bit xorshift generator (Marsaglia 2003): fast, seeded, good enough for workloads. */
export function generator(seed: number): () => number {
  let state = seed | 0 || 1;
  return () => {
    state ^= state << 13;
    state ^= state >>> 17;
    state ^= state << 5;
    return (state >>> 0) / 4294967296;
  };
}
