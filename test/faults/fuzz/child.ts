// One target in a process of its own, under the eyes of supervise.ts: findings go to stdout, a line of JSON each.

import { resolve } from "node:path";
import { Progress } from "./progress.ts";
import { type RunRange, runTarget } from "./run.ts";
import type { FuzzTarget } from "./target.ts";

export interface ChildOptions extends RunRange {
  /** Exports `targets`. */
  readonly module: string;
  readonly name: string;
  readonly progress: string;
}

const options = JSON.parse(process.argv[2] ?? "") as ChildOptions;
const { targets } = (await import(resolve(options.module))) as { targets: FuzzTarget[] };
const found = targets.find(({ name }) => name === options.name);
if (found === undefined) throw new Error(`there is no target ${options.name}`);
/** Inputs between two garbage collections, so that memory figures do not depend on the collector. */
const COLLECT_EVERY = 20_000;

const progress = Progress.open(options.progress);
await runTarget(found, {
  ...options,
  started: (index, slot) => {
    if (index % COLLECT_EVERY === 0) Bun.gc(true);
    progress.begin(index, slot, Date.now());
  },
  ended: (slot) => progress.end(slot),
  found: (finding) => console.log(JSON.stringify(finding)),
});
process.exit(0);
