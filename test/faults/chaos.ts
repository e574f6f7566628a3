// `npm run chaos`: a real rollout on real processes under faults drawn from a seed, compared with what must come, seed after
// seed.

import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Command, CommanderError, InvalidArgumentError } from "commander";
import { formatShare } from "../../src/cli/format.ts";
import { EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USAGE } from "../../src/cli/output.ts";
import { AppError } from "../../src/core/base/errors.ts";
import { BUNDLED_HF_MODEL, BUNDLED_PROMPTS, FOLDER } from "../../src/host/installation.ts";
import { findVllm } from "../../src/tools/up/find-vllm.ts";
import { possibleKinds } from "./chaos/fleet.ts";
import { type Fleets, standInFleets, vllmFleets } from "./chaos/fleets.ts";
import { CHAOS_KINDS, type ChaosKind, planChaos } from "./chaos/plan.ts";
import { type ChaosBed, runSeed, type SeedOutcome, WeightUpdater } from "./chaos/run.ts";
import { ChaosTally } from "./chaos/tally.ts";

interface ChaosSettings {
  readonly seed: number;
  readonly seeds: number;
  readonly fault: readonly string[];
  /** true: the vllm command that is found. */
  readonly vllm?: string | true;
  readonly json?: true;
  readonly quiet?: true;
}

const SEEDS = 10;
/** Interval between lines of progress. */
const NOTE_MS = 10_000;
/** Failures are reported one by one, up to this many. */
const FAILURES_MAX = 5;
const LINES_SHOWN = 20;

const EXAMPLES = `
It starts a sidecar with a journal over two engine servers, behind connections
that it can cut. Each seed runs a rollout of 6 responses on them, and inflicts 1
to 4 faults while it runs:
  ${CHAOS_KINDS.slice(0, 4).join(", ")},
  ${CHAOS_KINDS.slice(4, 8).join(", ")},
  ${CHAOS_KINDS.slice(8).join(", ")} (no fault: the trainer updates them)
The servers are stand-ins for vLLM, whose every token and logprob is known.

With --vllm two real vLLM servers take their place. Their arithmetic
depends on the batch, so a server compares each token's logprob with the model's
own for the finished text, under the same weights: a third of the responses
is at temperature 0, where each token is the likeliest one; the rest is drawn.

Examples:
  $ npm run chaos --                  ten seeds, half a minute
  $ npm run chaos -- --seeds 1000
  $ npm run chaos -- --seed 17 --seeds 1     one that failed, alone
  $ npm run chaos -- --seeds 100 --fault sidecar_kill --fault disk_full
  $ npm run chaos -- --vllm --seeds 5        a killed server needs 16 to 80 s`;

const listed = (text: string, before: readonly string[]): string[] => [...before, text];

const program = new Command("chaos")
  .description("Kill, stop and cut real processes during rollouts; check that nothing is lost.")
  .addHelpText("after", EXAMPLES)
  .option("--seed <N>", "the first seed", integer, 1)
  .option("--seeds <N>", "rollouts, each under the faults of its seed", integer, SEEDS)
  .option("--fault <KIND>", "draw only faults of this kind; may be repeated", listed, [])
  .option("--vllm [PATH]", "run on vLLM servers, started with this vllm command or the one found")
  .option("--json", "print the sums as JSON")
  .option("--quiet", "print failures alone")
  .exitOverride();

function integer(text: string): number {
  if (!/^[1-9]\d{0,6}$/.test(text)) throw new InvalidArgumentError("a whole number from 1 on.");
  return Number(text);
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
    note("starting a sidecar and two engines");
    let bed = await newBed(fleets);
    try {
      for (let i = 0; i < settings.seeds && !interrupted.signal.aborted; i += 1) {
        const plan = planChaos(settings.seed + i, kinds);
        note(`${tally.line}; seed ${plan.seed}: ${plan.faults.map(({ kind }) => kind)}`);
        const seed = runSeed(plan, bed);
        const outcome = await Promise.race([seed, stopped.promise]);
        // A seed that is given up ends with an error of no interest.
        if (outcome === null) seed.catch(() => undefined);
        if (outcome === null) break;
        tally.add(outcome);
        if (outcome.isRight) continue;
        report(outcome, settings, bed);
        if (tally.failures >= FAILURES_MAX) break;
        // What went wrong must not go wrong for the next one.
        await bed.fleet.close();
        bed = await newBed(fleets);
      }
    } finally {
      await bed.fleet.close();
    }
  } finally {
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

/** Kinds of --fault that this machine can inflict. @throws AppError usage. */
function kindsOf({ fault }: ChaosSettings): ChaosKind[] {
  const possible = possibleKinds();
  for (const name of fault) {
    if (possible.some((kind) => kind === name)) continue;
    const problem = CHAOS_KINDS.some((kind) => kind === name)
      ? "it needs prlimit of util-linux, which is not here"
      : `it is one of ${CHAOS_KINDS.join(", ")}`;
    throw new AppError("usage", `--fault is "${name}"; ${problem}`);
  }
  return fault.length === 0 ? possible : possible.filter((kind) => fault.includes(kind));
}

/** @throws AppError invalid_config, usage: there is no vLLM, or too few GPUs. */
function fleetsOf({ vllm }: ChaosSettings, folder: string): Fleets {
  if (vllm === undefined) return standInFleets(BUNDLED_HF_MODEL, folder);
  const found = findVllm(vllm === true ? null : vllm, FOLDER);
  return vllmFleets({ prompts: BUNDLED_PROMPTS, model: BUNDLED_HF_MODEL }, found, folder);
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
  const { fault, vllm } = settings;
  const servers = vllm === undefined ? "" : ` --vllm ${vllm === true ? "" : vllm}`.trimEnd();
  const only = fault.map((kind) => ` --fault ${kind}`).join("") + servers;
  console.error(`  repeat it: npm run chaos -- --seed ${plan.seed} --seeds 1${only}`);
}

/** A line now and then. */
function noteOf({ quiet }: ChaosSettings): (text: string) => void {
  let shownMs = Number.NEGATIVE_INFINITY;
  return (text) => {
    if (quiet || performance.now() - shownMs < NOTE_MS) return;
    shownMs = performance.now();
    console.error(text);
  };
}

/** Exit status, as the tool's: 2 for arguments, 1 for other errors. */
function statusOf(error: unknown): number {
  if (error instanceof CommanderError) return error.exitCode === 0 ? 0 : EXIT_USAGE;
  if (!(error instanceof AppError)) throw error;
  console.error(`chaos: ${error.message} [${error.code}]`);
  return ["usage", "invalid_config"].includes(error.code) ? EXIT_USAGE : EXIT_FAILED;
}

try {
  process.exitCode = await chaos(program.parse().opts<ChaosSettings>());
} catch (error) {
  process.exitCode = statusOf(error);
}
