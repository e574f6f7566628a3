// `npm run mutations`: introduces faults of the past again, one at a time, and counts how many of them the simulator finds.
// mutations.json has them: those of this project's history ("ours"), and those that users of other projects reported. Each
// is a change of a copy of the source, of a text that occurs once; the simulator runs on it until it objects. A fault that a
// later guard hides has that guard's line as a second change. `seed`: the first to run, for a fault that few seeds find, or that
// others than the guard alone would find. `test`: the file that has to find it, for what the simulator does not run (connections), or has in too few seeds.

import { cpSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Command } from "commander";
import { textTable } from "../../src/cli/output.ts";
import MUTATIONS from "./mutations.json";

const ROOT = join(import.meta.dir, "../..");
/** Share of the faults that has to be found: 28 of 30. */
const SHARE_MIN = 28 / 30;
/** A simulation that has found nothing by then is given up: on a slow machine it may just not be over. */
const HANG_MS = 180_000;

const FOUND_CHARACTERS = 70;

interface Mutation {
  readonly fault: string;
  readonly from: string;
  readonly seed?: number;
  readonly test?: string;
  readonly changes: readonly { file: string; search: string; replace: string }[];
}

interface Found {
  readonly fault: string;
  readonly from: string;
  /** null: nothing was found. */
  readonly found: string | null;
  /** Seeds that were run until then. */
  readonly seeds: number;
}

const program = new Command("mutations")
  .description("Introduce faults of the past again; count those that the simulator finds.")
  .option("--seeds <N>", "seeds to run at most for each fault", Number, 2_000)
  .option("--only <PATTERN>", "only faults whose name has this", "")
  .option("--json", "print the result as JSON");
const options = program.parse().opts<{ seeds: number; only: string; json?: boolean }>();

const tree = mkdtempSync(join(tmpdir(), "foretoken-mutations-"));
const results: Found[] = [];
try {
  for (const folder of ["src", "test", "proto"]) {
    cpSync(join(ROOT, folder), join(tree, folder), { recursive: true });
  }
  for (const name of ["node_modules", "build", "package.json", "tsconfig.json", "bunfig.toml"]) {
    symlinkSync(join(ROOT, name), join(tree, name));
  }
  for (const mutation of MUTATIONS) {
    if (!new RegExp(options.only).test(mutation.fault)) continue;
    const result = run(mutation);
    results.push(result);
    if (options.json !== true)
      console.error(`${result.found === null ? "MISSED" : "found"} ${result.fault}`);
  }
} finally {
  rmSync(tree, { recursive: true, force: true });
}
const found = results.filter((one) => one.found !== null).length;
if (options.json === true)
  console.log(JSON.stringify({ found, of: results.length, faults: results }));
else {
  const rows = results.map((one) => {
    const by = (one.found ?? "-").slice(0, FOUND_CHARACTERS);
    return [one.fault, one.from, by, String(one.seeds)];
  });
  console.log(textTable(["fault", "from", "found by", "seeds"], rows, 3));
  console.log(`${found} of ${results.length} found`);
}
process.exitCode = found < SHARE_MIN * results.length ? 1 : 0;

/** Runs the simulator on the tree with this fault in it. */
function run({ fault, from, seed: first = 1, test, changes }: Mutation): Found {
  const originals = new Map<string, string>();
  try {
    for (const { file, search, replace } of changes) {
      const path = join(tree, "src", file);
      const text = readFileSync(path, "utf8");
      if (!originals.has(path)) originals.set(path, text);
      if (text.split(search).length !== 2) {
        throw new Error(`${fault}: its text is not once in src/${file}: ${search}`);
      }
      writeFileSync(
        path,
        text.replace(search, () => replace),
      );
    }
    if (test !== undefined) {
      const tested = [process.execPath, "test", `./${test}`];
      const ended = Bun.spawnSync(tested, { cwd: tree, stderr: "pipe", timeout: HANG_MS });
      const failed = /^\(fail\) (.*)$/m.exec(ended.stderr.toString())?.[1] ?? null;
      return { fault, from, found: failed === null ? null : `test: ${failed}`, seeds: 1 };
    }
    const command = [
      process.execPath,
      "test/faults/simulate.ts",
      "--seeds",
      `${options.seeds}`,
      "--seed",
      `${first}`,
      "--first",
    ];
    const ended = Bun.spawnSync(command, { cwd: tree, stderr: "pipe", timeout: HANG_MS });
    const finding = /^seed (\d+): (.*)$/m.exec(ended.stderr.toString());
    if (finding !== null) {
      const [, seed, what = ""] = finding;
      return { fault, from, found: what, seeds: Number(seed) };
    }
    if (ended.exitCode === 0 || ended.exitedDueToTimeout === true) {
      return { fault, from, found: null, seeds: options.seeds };
    }
    return { fault, from, found: `process: ${ended.stderr.toString().slice(0, 200)}`, seeds: 1 };
  } finally {
    for (const [path, text] of originals) writeFileSync(path, text);
  }
}
