// `foretoken rollout`: one iteration over embedded engines, or several for comparison.

import { mkdirSync, writeFileSync } from "node:fs";
import { cpus } from "node:os";
import { dirname } from "node:path";
import { Command } from "commander";
import { runIteration } from "../app.ts";
import { present } from "../base/assert.ts";
import { AppError } from "../base/errors.ts";
import { weightEpoch } from "../base/ids.ts";
import type { Settings } from "../config/fields.ts";
import { BUNDLED_MODEL } from "../installation.ts";
import type { Group, GroupSpec } from "../request/buffer.ts";
import type { ReportFile, RunReport } from "../rollout/report.ts";
import { defaultDraft } from "../schedule/policies.ts";
import { type LlamaModel, openLlamaModel } from "../worker/llama/open.ts";
import { addFields, readFields } from "./commander-fields.ts";
import { parseCompare, type Run } from "./compare.ts";
import { EXIT_FAILED, EXIT_INTERRUPTED } from "./exit.ts";
import { groupsOf } from "./job.ts";
import { whenLauncherEnds } from "./launcher.ts";
import { ProgressDisplay } from "./progress.ts";
import { loadPrompts } from "./prompts.ts";
import { ResponseWriter } from "./responses.ts";
import { busyNote, measured, type RoundsReport, withRounds } from "./rounds.ts";
import { comparisonTable, runTable } from "./table.ts";

const FIELD_NAMES = [
  "out",
  "report",
  "model",
  "workers",
  "slots",
  "kvTokens",
  "groupSize",
  "limit",
  "maxTokens",
  "temperature",
  "seed",
  "chunkTokens",
  "policy",
  "draft",
  "draftBudget",
  "compare",
  "rounds",
  "deterministic",
  "poolMemoryMb",
  "poolDiskMb",
  "poolDir",
  "json",
  "quiet",
] as const;

type RolloutSettings = Settings<(typeof FIELD_NAMES)[number]>;

/** The tool runs one iteration on the weights it has opened: the first epoch. */
const EPOCH = weightEpoch(0);
const MIB = 1024 * 1024;

const EXAMPLES = `
Prompts are JSON lines: {"id": "p1", "prompt": "text"},
{"id": "p1", "token_ids": [1, 2]} or {"id": "p1", "messages": [...]}.
With --compare, RESPONSES.jsonl holds the responses of the last run.

Examples:
  $ foretoken rollout model/prompts.jsonl --limit 16 --out out/responses.jsonl
  $ foretoken rollout model/prompts.jsonl --limit 16 --out out/r.jsonl \\
      --compare group,seer:off,seer --report out/report.json
`;

export function rolloutCommand(setStatus: (status: number) => void): Command {
  const command = new Command("rollout")
    .description("Run one rollout iteration: every prompt answered n times.")
    .argument("<prompts>", "prompts, one JSON object a line")
    .addHelpText("after", EXAMPLES);
  addFields(command, FIELD_NAMES);
  return command.action(async (prompts: string) => {
    setStatus(await rollout(prompts, readFields(command, FIELD_NAMES)));
  });
}

async function rollout(promptsPath: string, settings: RolloutSettings): Promise<number> {
  const outPath = settings.out;
  if (outPath === null) throw new AppError("usage", "--out RESPONSES.jsonl is required");
  const runs = runsOf(settings);
  const model = await openLlamaModel({
    path: settings.model ?? BUNDLED_MODEL,
    deterministic: settings.deterministic,
  });
  const abort = new AbortController();
  const release = abortOnSignal(abort);
  try {
    const groups = await readGroups(promptsPath, model, settings);
    const reports = await runRounds(runs, { groups, model, settings, outPath, abort });
    writeReport(promptsPath, settings, reports);
    show(reports, settings);
    if (abort.signal.aborted) return EXIT_INTERRUPTED;
    const haveFailed = Object.values(reports).some((report) => report.failed_requests > 0);
    return haveFailed ? EXIT_FAILED : 0;
  } finally {
    release();
    model.close();
  }
}

/** The runs in turn, as often as there are rounds. The responses written are those of the very last run. */
async function runRounds(
  runs: readonly Run[],
  job: {
    groups: readonly GroupSpec[];
    model: LlamaModel;
    settings: RolloutSettings;
    outPath: string;
    abort: AbortController;
  },
): Promise<Record<string, RoundsReport>> {
  const { settings, abort } = job;
  const done = new Map<string, Awaited<ReturnType<typeof measured>>[]>();
  const order = Array.from({ length: settings.rounds }, () => runs).flat();
  for (const [i, run] of order.entries()) {
    const responses = i === order.length - 1 ? new ResponseWriter(job.outPath) : null;
    const title =
      settings.rounds === 1 ? run.name : `${run.name} ${Math.floor(i / runs.length) + 1}`;
    try {
      const outcome = await measured(() => runOne({ ...job, run, title, responses }));
      done.set(run.name, [...(done.get(run.name) ?? []), outcome]);
    } finally {
      responses?.close();
    }
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
  model: LlamaModel,
  settings: RolloutSettings,
): Promise<GroupSpec[]> {
  const { vocabularySize, contextTokens, stopTokenIds } = model;
  const prompts = await loadPrompts(path, { vocabularySize, limit: settings.limit });
  return groupsOf(prompts, {
    path,
    ...settings,
    contextTokens,
    vocabularySize,
    stopTokenIds,
    text: model.text,
  });
}

async function runOne(options: {
  run: Run;
  /** Of the progress display. */
  title: string;
  groups: readonly GroupSpec[];
  model: LlamaModel;
  settings: RolloutSettings;
  responses: ResponseWriter | null;
  abort: AbortController;
}): Promise<RunReport> {
  const { run, title, groups, model, settings, responses, abort } = options;
  const display = new ProgressDisplay({
    stream: process.stderr,
    title,
    quiet: settings.quiet,
  });
  const announceStop = () =>
    display.note("stopping: finished groups are kept; once more to quit at once");
  abort.signal.addEventListener("abort", announceStop);
  try {
    return await runIteration({
      model,
      epoch: EPOCH,
      groups,
      workers: settings.workers,
      slots: settings.slots,
      kvTokens: settings.kvTokens,
      chunkTokens: settings.chunkTokens,
      policy: run.policy,
      draft: run.draft,
      draftBudget: settings.draftBudget,
      poolMemoryBytes: settings.poolMemoryMb * MIB,
      poolDiskBytes: settings.poolDiskMb * MIB,
      poolDir: settings.poolDir,
      onGroup: (group) => responses?.writeGroup(finishedResponses(group, model)),
      onFailed: ({ response }) => display.note(`failed: ${response.refusal?.message}`),
      onProgress: (progress) => display.update(progress),
      signal: abort.signal,
    });
  } finally {
    abort.signal.removeEventListener("abort", announceStop);
    display.finish();
  }
}

function finishedResponses(group: Group, model: LlamaModel) {
  return group.requests.map(({ spec, response }) => ({
    group: spec.groupId,
    index: spec.sampleIndex,
    promptTokenIds: spec.prompt,
    tokenIds: response.tokens(),
    text: model.tokenizer.decode(response.tokens()),
    logprobs: response.logprobs(),
    finishReason: present(response.finish, "a finished group has only finished responses"),
    weightEpoch: EPOCH,
    chunks: response.chunks,
    refusal: response.refusal,
  }));
}

function reportFile(settings: RolloutSettings, reports: Record<string, RoundsReport>): ReportFile {
  return {
    command: ["foretoken", ...process.argv.slice(2)].join(" "),
    model: settings.model ?? "foretoken-3m-q8_0.gguf (bundled)",
    seed: settings.seed,
    host: { cpu: cpus()[0]?.model ?? "unknown", cores: cpus().length, bun: Bun.version },
    runs: reports,
  };
}

function writeReport(
  promptsPath: string,
  settings: RolloutSettings,
  reports: Record<string, RoundsReport>,
): void {
  if (settings.report === null) return;
  const text = `${JSON.stringify(reportFile(settings, reports), null, 2)}\n`;
  try {
    mkdirSync(dirname(settings.report), { recursive: true });
    writeFileSync(settings.report, text);
  } catch (cause) {
    const reason = cause instanceof Error ? cause.message : String(cause);
    const message = `--report ${settings.report}: ${reason} (prompts: ${promptsPath})`;
    throw new AppError("output_failed", message, { cause });
  }
}

function show(reports: Record<string, RoundsReport>, settings: RolloutSettings): void {
  if (settings.json) {
    console.log(JSON.stringify(reportFile(settings, reports), null, 2));
    return;
  }
  if (settings.quiet) return;
  const names = Object.keys(reports);
  if (names.length > 1) console.log(comparisonTable(reports));
  else {
    for (const name of names)
      console.log(runTable(name, present(reports[name], "a run has a report")));
  }
  const note = busyNote(Object.values(reports));
  if (note !== null) console.log(`\n${note}`);
}

/** The first signal ends the iteration in order; a second one ends the process. */
function abortOnSignal(abort: AbortController): () => void {
  const stop = () => {
    if (abort.signal.aborted) process.exit(EXIT_INTERRUPTED);
    abort.abort();
  };
  process.on("SIGINT", stop);
  process.on("SIGTERM", stop);
  whenLauncherEnds(() => abort.abort());
  return () => {
    process.off("SIGINT", stop);
    process.off("SIGTERM", stop);
  };
}
