// `npm run fuzz`: a million inputs, or --inputs, for each parser that takes bytes from outside, each in a process of its own.
// Exit status 1: something crashed, hung, or failed otherwise than by refusing its input. A finding is repeated with --only,
// --seed, --from and --inputs 1.

import { parseArgs } from "node:util";
import { supervise } from "./supervise.ts";
import { targets } from "./targets.ts";

const HANG_MS = 60_000;
const FINDINGS_MAX = 20;

const { values } = parseArgs({
  options: {
    inputs: { type: "string", default: "1000000" },
    only: { type: "string", multiple: true, default: [] },
    seed: { type: "string", default: "1" },
    from: { type: "string", default: "0" },
    list: { type: "boolean", default: false },
  },
});

function wholeNumber(flag: "inputs" | "seed" | "from", min: number): number {
  const value = Number(values[flag]);
  if (Number.isSafeInteger(value) && value >= min) return value;
  console.error(`--${flag} is "${values[flag]}"; it is a whole number from ${min} on`);
  process.exit(2);
}

const inputs = wholeNumber("inputs", 1);
const seed = wholeNumber("seed", 0);
const from = wholeNumber("from", 0);
const names = targets.map(({ name }) => name);
/** A whole name means that target alone; a part of names, all of them. */
const chosen = names.filter((name) =>
  [values.only].flat().some((one) => name === one || (!names.includes(one) && name.includes(one))),
);
if (values.only.length > 0 && chosen.length === 0) {
  console.error(`--only ${values.only.join(" --only ")}: there is no such target (--list)`);
  process.exit(2);
}
let count = 0;
for (const name of values.only.length === 0 ? names : chosen) {
  if (values.list) {
    console.log(name);
    continue;
  }
  const run = { seed, from, to: from + inputs, findingsMax: FINDINGS_MAX, hangMs: HANG_MS };
  const module = `${import.meta.dir}/targets.ts`;
  const { failures, crashes, hangs, ...sums } = await supervise({ ...run, module, name });
  const perS = Math.round(sums.inputs / sums.seconds);
  const memory = `${Math.round(sums.rssMibMax)} MiB`;
  const found = `${crashes.length} crashes, ${hangs.length} hangs, ${failures.length} failures`;
  console.log(`${name}: ${sums.inputs} inputs, ${perS} a second, ${memory}: ${found}`);
  for (const { index, problem, input } of [...crashes, ...hangs, ...failures]) {
    const again = `npm run fuzz -- --only "${name}" --seed ${seed} --from ${index} --inputs 1`;
    console.error(`${name}, seed ${seed}, index ${index}: ${problem}\n${input}\n${again}`);
    count += 1;
  }
}
process.exit(count === 0 ? 0 : 1);
