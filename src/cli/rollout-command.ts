// `foretoken rollout`: one iteration over embedded engines or servers, or several for comparison. Engines are opened anew
// for every run.

import { cpus } from "node:os";
import type { Command } from "commander";
import { EngineSources } from "../compose/engines.ts";
import { stderrLog } from "../compose/log.ts";
import type { ModelSide } from "../compose/model.ts";
import { operatorLog } from "../compose/operator-log.ts";
import { runRollout } from "../compose/rollout.ts";
import { EMBEDDED_FIELDS, PROMPT_FIELDS, type Settings } from "../config/fields.ts";
import { AppError } from "../core/base/errors.ts";
import type { RolloutRequest } from "../core/request/buffer.ts";
import type { ReportFile, RunReport } from "../core/rollout/report.ts";
import { runNamed } from "../core/schedule/policies.ts";
import { BUNDLED_MODEL, BUNDLED_PROMPTS } from "../host/installation.ts";
import { journalsIn } from "../host/journal-file.ts";
import { comparisonPage, pagePath } from "../observe/picture/page.ts";
import { linesOf } from "../server/rollouts/response-line.ts";
import { commandOf, givenFields, refuseGiven } from "./command.ts";
import {
  EXIT_FAILED,
  EXIT_INTERRUPTED,
  type OutputFile,
  outputsOf,
  reportFiles,
} from "./output.ts";
import { openPricedModel, PRICED } from "./priced-model.ts";
import { progressDisplay } from "./progress.ts";
import { checkRoom, loadPrompts, longestIn, type PromptFile, planOfPrompts } from "./prompts.ts";
import {
  areEqual,
  busyNotes,
  equalResponses,
  measured,
  type Runs,
  speedups,
  withRounds,
} from "./rounds.ts";
import { untilSignal } from "./signals.ts";
import { comparisonTable } from "./table.ts";

/** Seconds for servers to load, where --start-s is not given. */
const START_S = 60;

const ENGINE_FIELDS = ["worker", "workerToken", "tokenizer", "startS", "model", "llama"] as const;
const RUN_FIELDS = ["policy", "compare", "rounds", "chunkTokens", "poolMemoryMb"] as const;
const SETUP_FIELDS = [
  ...ENGINE_FIELDS,
  ...EMBEDDED_FIELDS,
  ...PROMPT_FIELDS,
  ...RUN_FIELDS,
] as const;
const FIELD_NAMES = ["demo", "out", "report", "journal", ...SETUP_FIELDS, "json", "quiet"] as const;

type RolloutSettings = Settings<(typeof FIELD_NAMES)[number]>;

const MIB = 1024 * 1024;
/** Ratio of the pool's SSD space to its DRAM. */
const POOL_DISK_SHARE = 4;

const EXAMPLES = `
Prompts are JSON lines: {"id": "p1", "prompt": "text"},
{"id": "p1", "token_ids": [1, 2]} or {"id": "p1", "messages": [...]}, with
"n", "finish_first" and "sampling_params" of its own where it needs them.
With --compare, RESPONSES.jsonl holds the responses of the last run.

Examples:
  $ foretoken rollout --demo
  $ foretoken rollout model/prompts.jsonl --limit 16 --out out/responses.jsonl
  $ foretoken rollout prompts.jsonl --worker http://gpu-0:8000 \\
      --worker http://gpu-1:8000 --out out/responses.jsonl
  $ foretoken rollout model/prompts.jsonl --limit 16 --out out/r.jsonl \\
      --compare group,seer:off,seer --report out/report.json`;

export const rolloutCommand = commandOf({
  name: "rollout",
  description: "Run one rollout iteration: every prompt answered n times.",
  takes: ["[prompts]", "prompts, one JSON object a line"],
  help: EXAMPLES,
  fields: FIELD_NAMES,
  defaults: { startS: START_S, llama: 2 },
  run: async (given, [prompts], command) => {
    const settings = given.demo ? withDemo(command, given) : given;
    if (settings.worker.length > 0) {
      const names = ["llama", ...EMBEDDED_FIELDS] as const;
      refuseGiven(command, names, "on the engines that --worker names");
    }
    return await rollout(promptsOf(prompts, settings.demo), settings);
  },
});

/** Defaults of --demo: steps as expensive as a real model's, and KV for some three responses per engine. */
const DEMO = {
  model: PRICED,
  limit: 4,
  groupSize: 8,
  maxTokens: 450,
  kvTokens: 600,
  rounds: 2,
  compare: ["group", "divided", "seer"],
} as const;
const DEMO_FIELDS = Object.keys(DEMO) as (keyof typeof DEMO)[];

function withDemo(command: Command, settings: RolloutSettings): RolloutSettings {
  const { explicit, inherited } = givenFields(command, DEMO_FIELDS);
  const given = new Set<string>([...explicit, ...inherited]);
  const entries = Object.entries(DEMO).filter(([name]) => !given.has(name));
  return { ...settings, ...Object.fromEntries(entries) };
}

/** The path of the prompts. @throws AppError usage: none is named, or both a file and --demo. */
function promptsOf(path: string | undefined, isDemo: boolean): string {
  if (isDemo && path !== undefined) {
    throw new AppError("usage", `--demo has its own prompts: leave out ${path}`);
  }
  if (isDemo) return BUNDLED_PROMPTS;
  if (path !== undefined) return path;
  throw new AppError("usage", "no prompts: name a file of JSON lines, or give --demo");
}

async function rollout(promptsPath: string, settings: RolloutSettings): Promise<number> {
  if (settings.out === null && !settings.demo) {
    throw new AppError("usage", "--out RESPONSES.jsonl is required");
  }
  const names = settings.compare.length > 0 ? settings.compare : [settings.policy];
  const runs = names.map((name) => ({ name, ...runNamed(name) }));
  if (settings.journal !== null && runs.length * settings.rounds > 1) {
    throw new AppError("usage", "--journal is for one run: not beside --compare or --rounds");
  }
  const files = filesOf(promptsPath, settings);
  const abort = new AbortController();
  // The first signal ends the iteration in order; a second one ends the process.
  const signals = untilSignal();
  void signals.first.then(() => abort.abort(new AppError("interrupted", "stopped by a signal")));
  void signals.second.then(() => process.exit(EXIT_INTERRUPTED));
  let opened: Opened | null = null;
  try {
    opened = await openEngines(settings, abort.signal);
    const { model, name } = opened;
    if (settings.model === PRICED && !settings.quiet) console.warn(name);
    const { vocabularySize } = model.text;
    const lines = await loadPrompts(promptsPath, { vocabularySize, limit: settings.limit });
    const prompts = { ...settings, path: promptsPath, lines, model };
    const { signal } = abort;
    const job = { ...opened, prompts, settings, out: files.out, signal };
    const reports = await runRounds(runs, job);
    const file = {
      command: ["foretoken", ...process.argv.slice(2)].join(" "),
      model: name,
      seed: settings.seed,
      host: { cpu: cpus()[0]?.model ?? "unknown", cores: cpus().length, bun: Bun.version },
      runs: reports,
    };
    const notes = busyNotes(Object.values(reports), settings.worker.length > 0);
    const facts = [...speedups(reports, settings.worker), ...notes];
    if (settings.json) console.log(formatReport(file));
    else if (!settings.quiet) show(reports, facts, settings);
    files.report?.write(formatReport(file));
    const pictured = Object.entries(reports).map(([name, report]) => ({ name, ...report }));
    files.page?.write(comparisonPage(pictured, { areEqual: areEqual(reports), facts }));
    if (abort.signal.aborted) return EXIT_INTERRUPTED;
    const haveFailed = Object.values(reports).some((report) => report.failed_requests > 0);
    return haveFailed ? EXIT_FAILED : 0;
  } catch (error) {
    const left = files.out?.left ?? null;
    if (left !== null) console.error(`the finished responses are in ${left}`);
    throw error;
  } finally {
    signals.release();
    opened?.model.llama?.close();
  }
}

/** Opens the output files. @throws AppError usage, output_failed. */
function filesOf(prompts: string, { model, journal, out, report }: RolloutSettings) {
  const kept = journal === null ? [] : journalsIn(journal);
  const open = outputsOf([prompts, ...(model === null ? [] : [model]), ...kept]);
  return { out: open("--out", out), ...reportFiles(open, report) };
}

/** The engines of a command: embedded ones on a GGUF file, or the servers that --worker names. */
interface Opened {
  readonly engines: EngineSources;
  readonly model: ModelSide;
  /** The model's name in the report. */
  readonly name: string;
}

/** Finds the engines and their model. @throws AppError: no model can be read, or no server reports one. */
async function openEngines(settings: RolloutSettings, signal: AbortSignal): Promise<Opened> {
  const { worker, startS, slots, kvTokens, deterministic } = settings;
  const areServers = worker.length > 0;
  const log = operatorLog(stderrLog("text:warn"), () => {});
  const own = areServers
    ? null
    : { count: engineCount(settings.llama), slots, kvTokens, deterministic };
  const priced = settings.model === PRICED ? openPricedModel(BUNDLED_MODEL) : null;
  const path = priced?.path ?? settings.model;
  const timeUp = AbortSignal.timeout(startS * 1000);
  let problem = "";
  const wait = {
    tried: (problems: readonly string[]) => {
      const found = problems.join("; ");
      if (found !== problem) console.warn(`waiting for ${found}`);
      problem = found;
    },
    signal: AbortSignal.any([signal, timeUp]),
  };
  try {
    const named = { ...settings, model: path, servedModelName: null, embedded: own };
    const engines = new EngineSources(named, log);
    const model = await engines.model(wait, () => []);
    const file = priced?.name ?? settings.model ?? "foretoken-3m-q8_0.gguf (bundled)";
    return { engines, model, name: areServers ? model.names[0] : file };
  } catch (error) {
    if (error !== timeUp.reason) throw error;
    throw new AppError("worker_failed", `${problem} (after ${startS} s; --start-s)`);
  } finally {
    priced?.close();
  }
}

/** The number of embedded engines. @throws AppError usage: it is 0. */
export function engineCount(llama: number): number {
  if (llama > 0) return llama;
  throw new AppError("usage", "--llama is 0; at least 1 engine must run, and at most 64");
}

interface ComparedRun extends ReturnType<typeof runNamed> {
  /** The run's name as written on the command line: its key in the report. */
  readonly name: string;
}

/** The part that all runs of one command share. */
interface Job extends Opened {
  readonly prompts: PromptFile;
  readonly settings: RolloutSettings;
  /** File for the responses; null: they are not kept. */
  readonly out: OutputFile | null;
  readonly signal: AbortSignal;
}

/** Executes the runs in turn, once per round. Only the responses of the very last run are written. */
async function runRounds(runs: readonly ComparedRun[], job: Job): Promise<Runs> {
  const { settings, signal } = job;
  const { text } = job.model;
  const done = new Map<string, Awaited<ReturnType<typeof measured>>[]>();
  const first = new Map<string, unknown>();
  const order = Array.from({ length: settings.rounds }, () => runs).flat();
  for (const [i, run] of order.entries()) {
    const isLast = i === order.length - 1;
    const out = isLast ? job.out : null;
    const title =
      settings.rounds === 1 ? run.name : `${run.name} ${Math.floor(i / runs.length) + 1}`;
    let equal = 0;
    const onGroup = (group: string, finished: readonly RolloutRequest[]) => {
      equal += equalResponses(first, group, finished);
      out?.append(linesOf(group, finished, { text, skipSpecial: false }));
    };
    const { report, round } = await measured(() => runOne(job, { run, title, onGroup }));
    const outcome = { report, round: { ...round, equal_responses: equal } };
    done.set(run.name, [...(done.get(run.name) ?? []), outcome]);
    // An interrupt before the first finished response leaves the file of an earlier command.
    if (!signal.aborted || out?.isEmpty === false) out?.finish();
    if (signal.aborted) break;
  }
  return Object.fromEntries([...done].map(([name, outcomes]) => [name, withRounds(outcomes)]));
}

async function runOne(
  { prompts, engines, model, settings, signal }: Job,
  { run, title, onGroup }: { run: ComparedRun; title: string; onGroup: OnGroup },
): Promise<RunReport> {
  const display = progressDisplay({ title, quiet: settings.quiet });
  const announceStop = () =>
    display.note("stopping: finished responses are kept; once more to quit at once");
  signal.addEventListener("abort", announceStop);
  try {
    // Servers make the prompts of chats, and may have a tokenizer that is not on this machine.
    const localPlan = settings.worker.length > 0 ? null : await planOfPrompts(prompts);
    return await runRollout({
      plan: async (running) => {
        const plan = localPlan ?? (await planOfPrompts(prompts, running));
        checkRoom(plan, prompts, running.sidecar.rollout.workers);
        return plan;
      },
      model,
      sources: engines.sources(model, localPlan === null ? undefined : longestIn(localPlan)),
      policy: run.policy,
      draft: run.draft,
      chunkTokens: settings.chunkTokens,
      poolMemoryBytes: settings.poolMemoryMb * MIB,
      poolDiskBytes: POOL_DISK_SHARE * settings.poolMemoryMb * MIB,
      journal: settings.journal,
      startS: settings.worker.length > 0 ? settings.startS : null,
      onGroup,
      ...display,
      signal,
    });
  } finally {
    signal.removeEventListener("abort", announceStop);
    display.finish();
  }
}

type OnGroup = (group: string, finished: readonly RolloutRequest[]) => void;

/** The report as JSON, with each list of numbers or names on one line. No string in JSON contains a line end. */
function formatReport(report: ReportFile): string {
  return JSON.stringify(report, null, 2).replace(/\[\n[^[\]{}]*\]/g, (list) =>
    list.replace(/,\n\s*/g, ", ").replace(/\n\s*/g, ""),
  );
}

function show(reports: Runs, facts: readonly string[], settings: RolloutSettings): void {
  console.log(comparisonTable(reports));
  const picture =
    settings.report === null ? [] : [`Engines over time: ${pagePath(settings.report)}`];
  for (const line of [...facts, ...picture]) console.log(`\n${line}`);
}
