// `foretoken chaos`: a real rollout on real processes under faults drawn from a seed, compared with an undisturbed one,
// seed after seed; or for minutes with a worker killed every so often.

import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Command } from "commander";
import { possibleKinds } from "../chaos/fleet.ts";
import { type Fleets, linkedFleets, vllmFleets } from "../chaos/fleets.ts";
import {
  CHAOS_KINDS,
  type ChaosKind,
  type ChaosPlan,
  planChaos,
  planOneOfMany,
} from "../chaos/plan.ts";
import { type ChaosBed, healed, runSeed, type SeedOutcome, WeightUpdater } from "../chaos/run.ts";
import type { Settings } from "../config/fields.ts";
import { AppError } from "../core/base/errors.ts";
import {
  BUNDLED_HF_MODEL,
  BUNDLED_MODEL,
  BUNDLED_PROMPTS,
  FOLDER,
  PROGRAM,
} from "../host/installation.ts";
import { findVllm } from "../tools/up/find-vllm.ts";
import { ChaosTally } from "./chaos-tally.ts";
import { addFields, readFields } from "./commander-fields.ts";
import { EXIT_FAILED, EXIT_INTERRUPTED } from "./exit.ts";
import { formatShare } from "./format.ts";

const FIELD_NAMES = [
  "seed",
  "chaosSeeds",
  "chaosFaults",
  "chaosVllm",
  "killEvery",
  "minutes",
  "json",
  "quiet",
] as const;

type ChaosSettings = Settings<(typeof FIELD_NAMES)[number]>;

const SEED = 1;
const SEEDS = 10;
/** Between two lines of progress where there is no terminal. */
const NOTE_MS = 10_000;
/** Failures are reported one by one, up to this many. */
const FAILURES_MAX = 5;
const LINES_SHOWN = 20;

const EXAMPLES = `
It starts a sidecar with one engine of its own, a journal and two worker
processes behind links that it can cut. Each seed runs a rollout of 6 responses
on them, and inflicts 1 to 4 faults while it runs:
  ${CHAOS_KINDS.slice(0, 4).join(", ")},
  ${CHAOS_KINDS.slice(4, 8).join(", ")},
  ${CHAOS_KINDS.slice(8).join(", ")} (no fault: the trainer updates them)
Then it compares every token and logprob with an undisturbed run.

ETTR is the share of the wall time that went into tokens which were kept: engine
time in service / engine time x tokens kept / tokens generated. With --seeds
faults come every second, so it is low; --kill-every measures it.

With --vllm two vLLM servers take the place of the engines. Their arithmetic
depends on the batch, so a server compares each token's logprob with the model's
own for the finished text, under the same weights: a third of the responses
is at temperature 0, where each token is the likeliest one; the rest is drawn.

Examples:
  $ foretoken chaos                  ten seeds, half a minute
  $ foretoken chaos --seeds 1000
  $ foretoken chaos --seed 17 --seeds 1     one that failed, alone
  $ foretoken chaos --seeds 100 --fault sidecar_kill --fault disk_full
  $ foretoken chaos --vllm --seeds 5        a killed server needs 16 to 80 s
  $ foretoken chaos --kill-every 30 --minutes 5`;

export function chaosCommand(setStatus: (status: number) => void): Command {
  const command = new Command("chaos")
    .description("Kill, stop and cut real processes during rollouts; check that nothing is lost.")
    .addHelpText("after", EXAMPLES);
  addFields(command, FIELD_NAMES, { seed: SEED });
  return command.action(async () => {
    setStatus(await chaos(readFields(command, FIELD_NAMES)));
  });
}

async function chaos(settings: ChaosSettings): Promise<number> {
  const kinds = kindsOf(settings);
  const interrupted = new AbortController();
  const stopped = Promise.withResolvers<null>();
  // A terminal sends the signal to all processes: a seed under way cannot end as it should.
  const stop = () => {
    interrupted.abort();
    stopped.resolve(null);
  };
  process.once("SIGINT", stop);
  process.once("SIGTERM", stop);
  const folder = mkdtempSync(join(tmpdir(), "foretoken-chaos-"));
  const tally = new ChaosTally();
  const note = noteOf(settings);
  try {
    const fleets = fleetsOf(settings, folder);
    note.show("starting a sidecar and two workers");
    let bed = await newBed(fleets);
    try {
      for (const plan of plansOf(settings, kinds, tally)) {
        if (interrupted.signal.aborted) break;
        note.show(`${tally.line}; seed ${plan.seed}: ${plan.faults.map(({ kind }) => kind)}`);
        const seed = runSeed(plan, bed, { heals: settings.killEvery === null });
        const outcome = await Promise.race([seed, stopped.promise]);
        // A seed that is given up ends with an error of no interest.
        if (outcome === null) seed.catch(() => undefined);
        if (outcome === null) break;
        tally.add(outcome);
        if (outcome.isRight) continue;
        note.end();
        report(outcome, settings, bed);
        if (tally.failures >= FAILURES_MAX) break;
        // What went wrong must not go wrong for the next one.
        await bed.fleet.close();
        bed = await newBed(fleets);
      }
      if (!interrupted.signal.aborted) await healed(bed);
    } finally {
      await bed.fleet.close();
    }
  } finally {
    note.end();
    rmSync(folder, { recursive: true, force: true });
    process.off("SIGINT", stop);
    process.off("SIGTERM", stop);
  }
  if (settings.json) console.log(JSON.stringify(tally.json(settings.seed), null, 2));
  else if (!settings.quiet) console.log(tally.table());
  if (tally.failures > 0) return EXIT_FAILED;
  // The seed that was given up still waits for processes that have ended.
  if (interrupted.signal.aborted) process.exit(EXIT_INTERRUPTED);
  return 0;
}

/** Those of --fault that this machine can inflict. @throws AppError usage. */
function kindsOf({ chaosFaults, killEvery, chaosSeeds }: ChaosSettings): ChaosKind[] {
  if (killEvery !== null && chaosSeeds !== null) {
    throw new AppError("usage", "--kill-every takes --minutes, not --seeds");
  }
  const possible = possibleKinds();
  for (const name of chaosFaults) {
    if (possible.some((kind) => kind === name)) continue;
    const isKnown = CHAOS_KINDS.some((kind) => kind === name);
    const problem = isKnown
      ? "it needs prlimit of util-linux, which is not here"
      : `it is one of ${CHAOS_KINDS.join(", ")}`;
    throw new AppError("usage", `--fault is "${name}"; ${problem}`);
  }
  return chaosFaults.length === 0
    ? possible
    : possible.filter((kind) => chaosFaults.includes(kind));
}

/** Seed after seed; or rollout after rollout for minutes, and in one of them now and then a worker dies. */
function* plansOf(
  { seed, chaosSeeds, killEvery, minutes }: ChaosSettings,
  kinds: readonly ChaosKind[],
  tally: ChaosTally,
): Generator<ChaosPlan> {
  if (killEvery === null) {
    for (let i = 0; i < (chaosSeeds ?? SEEDS); i += 1) yield planChaos(seed + i, kinds);
    return;
  }
  let kills = 0;
  for (let i = 0; tally.wallS < 60 * minutes; i += 1) {
    const isKilled = tally.wallS >= killEvery * (kills + 1);
    if (isKilled) kills += 1;
    yield planOneOfMany(seed, i, isKilled);
  }
}

/** @throws AppError invalid_config, usage: there is no vLLM, or too few GPUs. */
function fleetsOf({ chaosVllm }: ChaosSettings, folder: string): Fleets {
  const common = { program: PROGRAM, prompts: BUNDLED_PROMPTS };
  if (chaosVllm === null) return linkedFleets({ ...common, model: BUNDLED_MODEL }, folder);
  const found = findVllm(chaosVllm === "" ? null : chaosVllm, FOLDER);
  return vllmFleets({ ...common, model: BUNDLED_HF_MODEL }, found, folder);
}

async function newBed({ oracle, start }: Fleets): Promise<ChaosBed> {
  const fleet = await start();
  return { fleet, oracle, updates: new WeightUpdater(fleet, oracle), pending: new Set() };
}

function report({ plan, verdict }: SeedOutcome, settings: ChaosSettings, bed: ChaosBed): void {
  const faults = plan.faults.map(
    ({ kind, worker, share, ms }) => `${kind} ${worker} at ${formatShare(share)} for ${ms} ms`,
  );
  console.error(`seed ${plan.seed}: ${faults.join("; ")}`);
  for (const problem of verdict.problems) console.error(`  ${problem}`);
  for (const line of bed.fleet.lines.slice(-LINES_SHOWN)) console.error(`  | ${line}`);
  const { chaosFaults, chaosVllm } = settings;
  const vllm = chaosVllm === null ? "" : ` --vllm ${chaosVllm}`.trimEnd();
  const only = chaosFaults.map((kind) => ` --fault ${kind}`).join("") + vllm;
  console.error(`  repeat it: foretoken chaos --seed ${plan.seed} --seeds 1${only}`);
}

/** One line that is overwritten, on a terminal; elsewhere a line now and then. */
function noteOf({ quiet }: ChaosSettings): { show(text: string): void; end(): void } {
  if (quiet) return { show: () => {}, end: () => {} };
  const { stderr } = process;
  if (stderr.isTTY) {
    const clear = () => stderr.write("\r\x1b[2K");
    return {
      show: (text) => {
        clear();
        stderr.write(text.slice(0, stderr.columns - 1));
      },
      end: clear,
    };
  }
  let shownMs = Number.NEGATIVE_INFINITY;
  return {
    show: (text) => {
      if (performance.now() - shownMs < NOTE_MS) return;
      shownMs = performance.now();
      console.error(text);
    },
    end: () => {},
  };
}
