// `npm run fuzz`: a million inputs, or --inputs, for each parser that takes bytes from outside, each in a process of its
// own, --jobs of them at a time. Exit status 1: something crashed, hung, or failed otherwise than by refusing its input.
// A finding is repeated with --only, --seed, --from and --inputs 1.

import { parseArgs } from "node:util";
import Table from "cli-table3";
import type { Finding } from "./run.ts";
import { type Outcome, supervise } from "./supervise.ts";
import { targets } from "./targets.ts";

const MODULE = `${import.meta.dir}/targets.ts`;
const HANG_MS = 60_000;
const FINDINGS_MAX = 20;

const { values } = parseArgs({
  options: {
    inputs: { type: "string", default: "1000000" },
    only: { type: "string", multiple: true, default: [] },
    seed: { type: "string", default: "1" },
    from: { type: "string", default: "0" },
    jobs: { type: "string", default: "1" },
    json: { type: "boolean", default: false },
    list: { type: "boolean", default: false },
  },
});

function wholeNumber(flag: "inputs" | "seed" | "from" | "jobs", min: number): number {
  const value = Number(values[flag]);
  if (Number.isSafeInteger(value) && value >= min) return value;
  console.error(`--${flag} is "${values[flag]}"; it is a whole number from ${min} on`);
  process.exit(2);
}

const inputs = wholeNumber("inputs", 1);
const seed = wholeNumber("seed", 0);
const from = wholeNumber("from", 0);
const jobs = wholeNumber("jobs", 1);
const { only } = values;
/** A whole name means that target alone; a part of names, all of them. */
const isChosen = (name: string, wanted: string): boolean =>
  name === wanted || (targets.every((one) => one.name !== wanted) && name.includes(wanted));
const chosen = targets.filter(
  ({ name }) => only.length === 0 || only.some((wanted) => isChosen(name, wanted)),
);
if (chosen.length === 0) {
  console.error(`--only ${only.join(" --only ")}: there is no such target (--list prints them)`);
  process.exit(2);
}

function show(kind: string, name: string, findings: readonly Finding[]): void {
  for (const { index, problem, input } of findings) {
    const again = `npm run fuzz -- --only "${name}" --seed ${seed} --from ${index} --inputs 1`;
    console.error(`${kind}: ${name}, seed ${seed}, index ${index}: ${problem}\n${input}\n${again}`);
  }
}

const rounded = (value: number): number => Math.round(value * 10) / 10;

function report({ name, ...outcome }: Outcome): object {
  const { inputs: taken, seconds, failures, crashes, hangs, rssMibMax } = outcome;
  return {
    target: name,
    inputs: taken,
    seconds: rounded(seconds),
    inputs_per_s: Math.round(taken / seconds),
    crashes: crashes.length,
    hangs: hangs.length,
    failures: failures.length,
    rss_mib_max: Math.round(rssMibMax),
  };
}

function table(outcomes: readonly Outcome[]): string {
  const rows = outcomes.map((one) => Object.entries(report(one)));
  const head = rows[0]?.map(([name]) => name.replaceAll("_", " ")) ?? [];
  const printed = new Table({ head, style: { head: [], border: [] } });
  for (const row of rows) printed.push(row.map(([, value]) => `${value ?? "-"}`));
  return printed.toString();
}

if (values.list) {
  for (const { name } of chosen) console.log(name);
  process.exit(0);
}
const outcomes: Outcome[] = [];
const waiting = chosen.entries();

async function job(): Promise<void> {
  for (const [, { name }] of waiting) {
    const outcome = await supervise({
      ...{ module: MODULE, name, seed, from, to: from + inputs, findingsMax: FINDINGS_MAX },
      hangMs: HANG_MS,
    });
    outcomes.push(outcome);
    // At once, so that a run that is cut off has said what it did.
    console.error(JSON.stringify(report(outcome)));
    show("crash", name, outcome.crashes);
    show("hang", name, outcome.hangs);
    show("failure", name, outcome.failures);
  }
}

await Promise.all(Array.from({ length: jobs }, job));
console.log(
  values.json ? JSON.stringify({ seed, targets: outcomes.map(report) }, null, 2) : table(outcomes),
);
const isClean = outcomes.every(
  ({ crashes, hangs, failures }) => crashes.length + hangs.length + failures.length === 0,
);
process.exit(isClean ? 0 : 1);
