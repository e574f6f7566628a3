// `foretoken rollout`: one iteration over embedded engines, or several for comparison.

import { cpus } from "node:os";
import { Command } from "commander";
import { runIteration } from "../app.ts";
import type { Settings } from "../config/fields.ts";
import { AppError, errorText } from "../core/base/errors.ts";
import type { Group, GroupSpec } from "../core/request/buffer.ts";
import type { ReportFile, RunReport } from "../core/rollout/report.ts";
import { defaultDraft } from "../core/schedule/policies.ts";
import { BUNDLED_PROMPTS } from "../host/installation.ts";
import { comparisonPage, pagePath } from "../observe/picture/page.ts";
import { finishedResponse, formatLine } from "../server/rollouts/response-line.ts";
import type { Text } from "../text/text.ts";
import { addFields, givenFields, readFields, refuseGiven, renamed } from "./commander-fields.ts";
import { formatCount } from "./format.ts";
import {
  EXIT_FAILED,
  EXIT_INTERRUPTED,
  type OutputFile,
  outputsOf,
  reportFiles,
} from "./output.ts";
import { PRICED } from "./priced-model.ts";
import { ProgressDisplay } from "./progress.ts";
import { groupsOf, loadPrompts } from "./prompts.ts";
import {
  EMBEDDED_ONLY,
  ENGINE_FIELDS,
  EPOCH,
  openEngines,
  type RolloutEngines,
  START_S,
} from "./rollout-engines.ts";
import { journalFileIn, openRolloutJournal } from "./rollout-journal.ts";
import {
  busyNotes,
  equalResponses,
  measured,
  median,
  parseCompare,
  type Round,
  type Run,
  withRounds,
} from "./rounds.ts";
import { untilSignal } from "./signals.ts";
import { speedupSentence } from "./speedup.ts";
import { comparisonTable, type Runs } from "./table.ts";

const FIELD_NAMES = [
  "demo",
  "out",
  "report",
  ...ENGINE_FIELDS,
  "groupSize",
  "limit",
  "maxTokens",
  "temperature",
  "seed",
  "chunkTokens",
  "policy",
  "draft",
  "compare",
  "rounds",
  "poolMemoryMb",
  "journal",
  "json",
  "quiet",
] as const;

type RolloutSettings = Settings<(typeof FIELD_NAMES)[number]>;

const MIB = 1024 * 1024;
/** SSD of the pool, in parts of its DRAM. */
const POOL_DISK_SHARE = 4;

const EXAMPLES = `
Prompts are JSON lines: {"id": "p1", "prompt": "text"},
{"id": "p1", "token_ids": [1, 2]} or {"id": "p1", "messages": [...]}.
With --compare, RESPONSES.jsonl holds the responses of the last run.

Examples:
  $ foretoken rollout --demo
  $ foretoken rollout model/prompts.jsonl --limit 16 --out out/responses.jsonl
  $ foretoken rollout prompts.jsonl --worker http://gpu-0:8000 \\
      --worker http://gpu-1:8000 --out out/responses.jsonl
  $ foretoken rollout model/prompts.jsonl --limit 16 --out out/r.jsonl \\
      --compare group,seer:off,seer --report out/report.json`;

export function rolloutCommand(setStatus: (status: number) => void): Command {
  const command = new Command("rollout")
    .description("Run one rollout iteration: every prompt answered n times.")
    .argument("[prompts]", "prompts, one JSON object a line")
    .addOption(renamed("--workers", "llama"))
    .addHelpText("after", EXAMPLES);
  addFields(command, FIELD_NAMES, { startS: START_S, llama: 2 });
  return command.action(async (prompts: string | undefined) => {
    const settings = settingsOf(command);
    setStatus(await rollout(promptsOf(prompts, settings.demo), settings));
  });
}

/** Defaults of --demo: steps as expensive as a real model's, and KV for some three responses per engine. */
const DEMO = {
  model: PRICED,
  limit: 4,
  groupSize: 8,
  maxTokens: 450,
  kvTokens: 600,
  rounds: 2,
  compare: "group,divided,seer",
} as const;
const DEMO_FIELDS = Object.keys(DEMO) as (keyof typeof DEMO)[];

function withDemo(command: Command, settings: RolloutSettings): RolloutSettings {
  if (!settings.demo) return settings;
  const { explicit, inherited } = givenFields(command, DEMO_FIELDS);
  const given = new Set<string>([...explicit, ...inherited]);
  const entries = Object.entries(DEMO).filter(([name]) => !given.has(name));
  return { ...settings, ...Object.fromEntries(entries) };
}

/** @throws AppError usage: none are named, or twice. */
function promptsOf(path: string | undefined, isDemo: boolean): string {
  if (isDemo && path !== undefined) {
    throw new AppError("usage", `--demo has its own prompts: leave out ${path}`);
  }
  if (isDemo) return BUNDLED_PROMPTS;
  if (path !== undefined) return path;
  throw new AppError("usage", "no prompts: name a file of JSON lines, or give --demo");
}

/** @throws AppError usage: a setting that was given can have no effect. */
function settingsOf(command: Command): RolloutSettings {
  const settings = withDemo(command, readFields(command, FIELD_NAMES));
  const isRemote = settings.worker.length > 0;
  if (isRemote) refuseGiven(command, EMBEDDED_ONLY, "on the engines that --worker names");
  return settings;
}

async function rollout(promptsPath: string, settings: RolloutSettings): Promise<number> {
  if (settings.out === null && !settings.demo) {
    throw new AppError("usage", "--out RESPONSES.jsonl is required");
  }
  const runs = runsOf(settings);
  if (settings.journal !== null && runs.length * settings.rounds > 1) {
    throw new AppError("usage", "--journal is for one run: not beside --compare or --rounds");
  }
  const files = filesOf(promptsPath, settings);
  const abort = new AbortController();
  // The first signal ends the iteration in order; a second one ends the process.
  const signals = untilSignal();
  void signals.first.then(() => abort.abort());
  void signals.second.then(() => process.exit(EXIT_INTERRUPTED));
  let engines: RolloutEngines | null = null;
  try {
    engines = await openEngines(settings, abort.signal);
    if (settings.model === PRICED && !settings.quiet) console.warn(engines.model);
    const groups = await readGroups(promptsPath, engines, settings);
    const reports = await runRounds(runs, { groups, engines, settings, out: files.out, abort });
    const file = {
      command: ["foretoken", ...process.argv.slice(2)].join(" "),
      ...{ model: engines.model, seed: settings.seed },
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
    await engines?.close();
  }
}

/** @throws AppError usage, output_failed. */
function filesOf(prompts: string, { model, journal, out, report }: RolloutSettings) {
  const kept = journal === null ? [] : [journalFileIn(journal)];
  const open = outputsOf([prompts, ...(model === null ? [] : [model]), ...kept]);
  return { out: open("--out", out), ...reportFiles(open, report) };
}

/** The part that all runs of one command share. */
interface Job {
  readonly groups: readonly GroupSpec[];
  readonly engines: RolloutEngines;
  readonly settings: RolloutSettings;
  /** null: the responses are not kept. */
  readonly out: OutputFile | null;
  readonly abort: AbortController;
}

/** The runs in turn, as often as there are rounds. The responses written are those of the very last run. */
async function runRounds(runs: readonly Run[], job: Job): Promise<Runs> {
  const { settings, abort } = job;
  const done = new Map<string, Awaited<ReturnType<typeof measured>>[]>();
  const first = new Map<string, unknown>();
  const order = Array.from({ length: settings.rounds }, () => runs).flat();
  for (const [i, run] of order.entries()) {
    const isLast = i === order.length - 1;
    const out = isLast ? job.out : null;
    const title =
      settings.rounds === 1 ? run.name : `${run.name} ${Math.floor(i / runs.length) + 1}`;
    let equal = 0;
    const onGroup = (group: Group) => {
      equal += equalResponses(first, group);
      out?.append(linesOf(group, job.engines.text));
    };
    const { report, round } = await measured(() => runOne(job, { run, title, onGroup }));
    const outcome = { report, round: { ...round, equal_responses: equal } };
    done.set(run.name, [...(done.get(run.name) ?? []), outcome]);
    // An interrupt before the first finished response leaves the file of an earlier command.
    if (!abort.signal.aborted || out?.isEmpty === false) out?.finish();
    if (abort.signal.aborted) break;
  }
  return Object.fromEntries([...done].map(([name, outcomes]) => [name, withRounds(outcomes)]));
}

function runsOf(settings: RolloutSettings): Run[] {
  if (settings.compare !== null) return parseCompare(settings.compare, settings.draft);
  const { policy } = settings;
  return [{ name: policy, policy, draft: settings.draft ?? defaultDraft(policy) }];
}

async function readGroups(
  path: string,
  engines: RolloutEngines,
  settings: RolloutSettings,
): Promise<GroupSpec[]> {
  const { vocabularySize } = engines.text;
  const prompts = await loadPrompts(path, { vocabularySize, limit: settings.limit });
  return groupsOf(prompts, { path, ...settings, ...engines, vocabularySize });
}

async function runOne(
  { groups, engines, settings, abort }: Job,
  { run, title, onGroup }: { run: Run; title: string; onGroup: (group: Group) => void },
): Promise<RunReport> {
  const display = new ProgressDisplay({ title, quiet: settings.quiet });
  const announceStop = () =>
    display.note("stopping: finished responses are kept; once more to quit at once");
  abort.signal.addEventListener("abort", announceStop);
  const journal = journalOf(settings, groups, (text) => display.note(text));
  try {
    return await runIteration({
      openWorkers: engines.open,
      deterministic: engines.deterministic,
      epoch: EPOCH,
      groups,
      chunkTokens: settings.chunkTokens,
      ...run,
      poolMemoryBytes: settings.poolMemoryMb * MIB,
      poolDiskBytes: POOL_DISK_SHARE * settings.poolMemoryMb * MIB,
      poolDir: null,
      onGroup,
      onFailed: ({ response }) => display.note(`failed: ${response.refusal?.message}`),
      journal,
      onProgress: (progress) => display.update(progress),
      signal: abort.signal,
    });
  } finally {
    abort.signal.removeEventListener("abort", announceStop);
    await journal?.close();
    display.finish();
  }
}

function journalOf(
  { journal: folder }: RolloutSettings,
  groups: readonly GroupSpec[],
  note: (text: string) => void,
): ReturnType<typeof openRolloutJournal> | null {
  if (folder === null) return null;
  const journal = openRolloutJournal(folder, groups, (error) =>
    note(`the journal ends here, the rollout goes on without it: ${errorText(error)}`),
  );
  const { ended, tokens } = journal.kept;
  const all = groups.reduce((sum, { size }) => sum + size, 0);
  const what = `${formatCount(ended)} of ${formatCount(all)} responses had ended`;
  if (tokens > 0) note(`resumed from ${folder}: ${what}, ${formatCount(tokens)} tokens are kept`);
  return journal;
}

/** All runs made the same responses, in every round. */
export function areEqual(reports: Runs): boolean {
  return Object.values(reports).every(({ requests, rounds }) =>
    rounds.every(({ equal_responses }) => equal_responses === requests),
  );
}

/** A line for each finished response of a group, which may have been interrupted. */
function linesOf({ requests }: Group, text: Text): string {
  const finished = requests.filter(({ response }) => response.finish !== null);
  const lines = finished.map((request) => {
    const { groupId: group, sampleIndex: index } = request.spec;
    const written = text.decode(request.response.tokens(), { skipSpecial: false });
    return `${formatLine(finishedResponse(request, { group, index, text: written }))}\n`;
  });
  return lines.join("");
}

/** Lists of numbers and names take one line each: a timeline has thousands. No string in JSON has a line end. */
function formatReport(report: ReportFile): string {
  return JSON.stringify(report, null, 2).replace(/\[\n[^[\]{}]*\]/g, (list) =>
    list.replace(/,\n\s*/g, ", ").replace(/\n\s*/g, ""),
  );
}

/**
 * A sentence for each run after the first: medians of the rounds' ratios, as in the table. They are of engine times where
 * other processes lengthen wall times and all engines are embedded. They say why a run has no drafts, and how many responses are as in the first run.
 */
export function speedups(reports: Runs, servers: readonly string[] = []): string[] {
  const [base, ...others] = Object.entries(reports);
  if (base === undefined || base[1].interrupted) return [];
  const isEngineTime = servers.length === 0 && busyNotes(Object.values(reports)).length > 0;
  const ofServers = "these servers make none";
  const none = servers.length > 0 ? ofServers : "by the step times measured here they do not pay";
  const secondsOf = ({ wall_s, engine_s }: Round) => (isEngineTime ? engine_s : wall_s);
  return others.flatMap(([name, run]) => {
    if (run.interrupted) return [];
    const ratios = run.rounds.flatMap((round, i) => {
      const of = base[1].rounds[i];
      return of === undefined ? [] : [secondsOf(of) / secondsOf(round)];
    });
    const speedup = speedupSentence(base, [name, run], { speedup: median(ratios), isEngineTime });
    const equal = Math.min(...run.rounds.map((round) => round.equal_responses ?? Number.NaN));
    const why = run.draft !== "off" && run.drafts === 0 ? `; no drafts were made: ${none}` : "";
    const same = equal >= 0 ? `; ${equal} of ${run.requests} responses are equal` : "";
    return [`${speedup}${why}${same}.`];
  });
}

function show(reports: Runs, facts: readonly string[], settings: RolloutSettings): void {
  console.log(comparisonTable(reports));
  const picture =
    settings.report === null ? [] : [`Engines over time: ${pagePath(settings.report)}`];
  for (const line of [...facts, ...picture]) console.log(`\n${line}`);
}
