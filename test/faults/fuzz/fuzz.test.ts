// The fuzzer finds the faults that it looks for, and a share of its inputs finds none in the parsers.

import { heapStats } from "bun:jsc";
import { expect, setDefaultTimeout, test } from "bun:test";
import { join } from "node:path";
import { rounds } from "../attacks/scale.ts";
import { Generator } from "./generator.ts";
import { runTarget } from "./run.ts";
import { supervise } from "./supervise.ts";
import { targets } from "./targets.ts";

setDefaultTimeout(300_000);

const SEED = Number(process.env.SEED ?? 1);
const MODULE = join(import.meta.dir, "faulty.ts");

const SOUND = { inputs: 8, failures: [], crashes: [], hangs: [] };
const findingOf = (index: number, problem: string) => [
  expect.objectContaining({ index, problem: expect.stringContaining(problem) }),
];

test.each([
  ["sound", SOUND],
  ["throws", { ...SOUND, failures: findingOf(100, "TypeError") }],
  ["crashes", { ...SOUND, crashes: findingOf(104, "SIGSEGV") }],
  ["loops", { ...SOUND, hangs: findingOf(104, "no end after 5000 ms") }],
  ["waits", { ...SOUND, hangs: findingOf(104, "no end after 5000 ms") }],
])(
  "fuzz: what a parser does that %s is reported once, and the next input taken",
  async (name, outcome) => {
    const run = {
      module: MODULE,
      name,
      seed: 1,
      from: 100,
      to: 108,
      hangMs: 5_000,
      findingsMax: 3,
    };
    expect(await supervise(run)).toMatchObject(outcome);
  },
);

test("fuzz: an input follows from seed, name and index alone", async () => {
  const [target] = targets;
  const bed = await target?.open();
  const at = (seed: number, index: number) => {
    if (bed === undefined || target === undefined) throw new Error("there is a target");
    return new Generator(bed.inputs, { seed, name: target.name }).at(index);
  };
  expect(at(1, 77)).toEqual(at(1, 77));
  expect(at(1, 77)).not.toEqual(at(2, 77));
  await bed?.close();
});

/** The other routes have bodies like these, or none: the recorded attacks are enough for them. */
const ROUTES = ["/v1/completions", "/v1/chat/completions", "/inference/v1/generate", "/generate"]
  .concat(["/skyrl/v1/generate", "/tokenize", "/detokenize", "/v1/rollouts", "/update_weights"])
  .concat(["/collective_rpc", "/v1/load_lora_adapter", "/workers", "/update_weights_from_disk"])
  .map((path) => `http POST ${path}`);
/** Number of inputs that take about a tenth of a second. */
function shareOf(name: string): number {
  if (!name.startsWith("http ")) return 150;
  return ROUTES.includes(name) ? 40 : 4;
}

test.each([...targets])(
  "fuzz: $name takes or refuses each input, and nothing else happens",
  async (target) => {
    const to = rounds(shareOf(target.name), 5_000);
    const findings = await runTarget(target, { seed: SEED, from: 0, to, findingsMax: 3 });
    expect({ SEED, findings }).toEqual({ SEED, findings: [] });
  },
);

const parsers = targets.filter(({ name }) => !name.startsWith("http "));

test.each(parsers)("fuzz: $name keeps nothing of the inputs that it took", async (target) => {
  const to = shareOf(target.name);
  const counts: number[] = [];
  for (let pass = 0; pass < 5; pass += 1) {
    await runTarget(target, { seed: SEED, from: 0, to, findingsMax: 3 });
    Bun.gc(true);
    counts.push(heapStats().objectCount);
  }
  // Objects made once add to one pass or two; objects kept for each input add to every pass.
  const grown = Math.min(...counts.slice(1).map((count, at) => count - (counts[at] ?? 0)));
  expect(grown).toBeLessThan(to / 3);
});
