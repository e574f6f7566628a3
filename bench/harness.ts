// What every bench shares: its flags, the conditions that a result was taken under, tables and JSON.

import { execFileSync } from "node:child_process";
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { cpus, loadavg } from "node:os";
import { dirname, relative } from "node:path";
import { parseArgs } from "node:util";
import { textTable } from "../src/cli/output.ts";
import { AppError } from "../src/core/base/errors.ts";

export const SEED = 42;

type Default = number | string | boolean | null;

/** null: a text that may be missing. */
type Flags<D extends Readonly<Record<string, Default>>> = {
  readonly [K in keyof D]: D[K] extends number
    ? number
    : D[K] extends boolean
      ? boolean
      : D[K] extends null
        ? string | null
        : string;
};

interface Common {
  /** File of --json, or --report; null: none is written. */
  readonly json: string | null;
  /** What is no flag. */
  readonly files: readonly string[];
}

/**
 * The flags of the bench at `path` by their defaults: `kvBlocks` is --kv-blocks. With --help it prints the comment that the
 * file begins with, and ends the process. @throws AppError usage: a flag is unknown, or its value no number.
 */
export function flagsOf<const D extends Readonly<Record<string, Default>>>(
  path: string,
  defaults: D,
  args: readonly string[] = process.argv.slice(2),
): Flags<D> & Common {
  if (args.includes("--help")) {
    const [comment = ""] = readFileSync(path, "utf8").split(/^(?!\/\/)/m);
    console.log(comment.replaceAll(/^\/\/ ?/gm, ""));
    process.exit(0);
  }
  const all = Object.entries({ ...defaults, json: null, report: null });
  const types = all.map(([name, value]) => {
    const type: "boolean" | "string" = typeof value === "boolean" ? "boolean" : "string";
    return [flagOf(name), { type }] as const;
  });
  const options = Object.fromEntries(types);
  const { values, positionals } = parseArgs({ args: [...args], options, allowPositionals: true });
  const flags = all.map(([name, byDefault]) => {
    const flag = flagOf(name);
    const text = values[flag];
    if (text === undefined) return [name, byDefault];
    const value = typeof byDefault === "number" ? Number(text) : text;
    if (typeof value !== "number") return [name, value];
    // What is above 0 by default has no meaning at 0.
    const isPositive = Number(byDefault) > 0;
    if (Number.isFinite(value) && (isPositive ? value > 0 : value >= 0)) return [name, value];
    const bound = isPositive ? "above 0" : "from 0 on";
    throw new AppError("usage", `--${flag} is ${text}; it is a number ${bound}`);
  });
  const found = Object.fromEntries(flags);
  return { ...found, json: found.json ?? found.report, files: positionals };
}

const flagOf = (name: string) => name.replaceAll(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`);

/** The value of a flag that names one of `known`. @throws AppError usage. */
export function oneOf<Name extends string>(
  flag: string,
  text: string,
  known: readonly Name[],
): Name {
  const found = known.find((name) => name === text);
  if (found !== undefined) return found;
  throw new AppError("usage", `--${flag} is ${text}; it is one of ${known.join(", ")}`);
}

/** The same of a flag that names several; null: all of them. @throws AppError usage. */
export function someOf<Name extends string>(
  flag: string,
  text: string | null,
  known: readonly Name[],
): readonly Name[] {
  return text === null ? known : text.split(",").map((name) => oneOf(flag, name, known));
}

export function conditions() {
  let commit = "unknown";
  try {
    commit = execFileSync("git", ["rev-parse", "--short", "HEAD"], { encoding: "utf8" }).trim();
  } catch {
    // Not a checkout: the result says so.
  }
  const [cpu] = cpus();
  return {
    commit,
    runtime: `bun ${Bun.version}`,
    cpu: cpu?.model ?? "unknown",
    cores: cpus().length,
    load_1m: loadavg()[0] ?? 0,
    seed: SEED,
  };
}

/** Writes a bench's report as JSON, with the command and the conditions of the run. Without a path nothing is written. */
export function writeReport(path: string | null, found: object): void {
  if (path === null) return;
  const command = ["bun", relative(process.cwd(), Bun.main), ...process.argv.slice(2)].join(" ");
  const report = { command, conditions: conditions(), ...found };
  mkdirSync(dirname(path), { recursive: true });
  writeFileSync(path, `${JSON.stringify(report, null, 2)}\n`);
}

/** A row of a table of systems: its title, and the figure of each system. */
export type Line<T> = readonly [title: string, cell: (of: T, name: string) => string];

/** A table with a row for each figure, and a column for each system. */
export function figureTable<T>(
  systems: ReadonlyMap<string, T>,
  lines: readonly Line<T>[],
  corner = "",
): string {
  const rows = lines.map(([title, cell]) => [
    title,
    ...Array.from(systems, ([name, of]) => cell(of, name)),
  ]);
  return textTable([corner, ...systems.keys()], rows);
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

/**
 * Runs every system in each round, of which round 0 warms up and is not counted. The order turns, so that none is always
 * first. `onRound` gets the runs of all rounds so far.
 */
export async function interleaved<Name extends string, R>(
  names: readonly Name[],
  rounds: number,
  run: (name: Name, round: number) => Promise<R>,
  onRound: (runs: ReadonlyMap<Name, readonly R[]>) => void,
): Promise<ReadonlyMap<Name, readonly R[]>> {
  const runs = new Map<Name, R[]>(names.map((name) => [name, []]));
  for (let round = 0; round <= rounds; round += 1) {
    const from = round % names.length;
    for (const name of [...names.slice(from), ...names.slice(0, from)]) {
      const found = await run(name, round);
      if (round > 0) runs.get(name)?.push(found);
    }
    if (round > 0) onRound(runs);
  }
  return runs;
}
