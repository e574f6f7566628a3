// `foretoken rollout --journal DIR`: what is generated is kept in DIR, and the same command run again continues from it.

import { createHash } from "node:crypto";
import { join } from "node:path";
import { AppError } from "../core/base/errors.ts";
import type { WeightsId } from "../core/base/ids.ts";
import { checkFormat, type RunFiles, RunJournal } from "../core/journal/run-journal.ts";
import type { GroupSpec, Request } from "../core/request/buffer.ts";
import type { IterationJournal } from "../core/rollout/iteration.ts";
import type { Worker } from "../core/rollout/worker.ts";
import { JournalFile, readJournalFile, takeJournalFolder } from "../host/journal-file.ts";

/** The file in a journal's folder. */
export const journalFileIn = (folder: string): string => join(folder, "rollout.journal");

/**
 * The journal of a run, which `close` ends. `kept`: of earlier processes, responses that have ended, and the tokens of all.
 * @throws AppError invalid_config: another process uses the folder, or it holds another run; journal_damaged;
 * output_failed: it cannot be written.
 */
export function openRolloutJournal(
  folder: string,
  groups: readonly GroupSpec[],
  failed: (error: unknown) => void,
): IterationJournal & { close(): Promise<void>; kept: { ended: number; tokens: number } } {
  const release = takeJournalFolder(folder);
  try {
    const path = journalFileIn(folder);
    const saved = readJournalFile(path);
    const job = digestOf(groups);
    if (saved !== null) checkFormat(saved);
    if (saved !== null && saved.header.job !== job) {
      const problem = "holds another run: its prompts, their number or its sampling differ";
      throw new AppError("invalid_config", `--journal ${folder}: ${problem}; use another one`);
    }
    const open: RunFiles["open"] = (log, run) =>
      new JournalFile({ path, log, keptBytes: run?.bytes ?? 0, failed });
    const journal = new RunJournal({ open }, saved);
    if (saved === null) journal.describe({ job });
    const streams = streamsOf(groups);
    const streamOf = ({ spec }: Request) => (streams.get(spec.groupId) ?? 0) + spec.sampleIndex;
    const outputs = [...(saved?.outputs.values() ?? [])];
    const ended = outputs.filter(({ finish }) => finish !== null).length;
    return {
      kept: { ended, tokens: outputs.reduce((sum, { tokens }) => sum + tokens.length, 0) },
      check: (workers) => checkWeights(workers, saved?.last?.weights ?? null, folder),
      saved: (request) => saved?.outputs.get(streamOf(request)) ?? null,
      began: (request, output) => journal.began(request, streamOf(request), output),
      changed: (request) => journal.changed(request),
      finished: (request) => journal.finished(request),
      close: () => journal.close().then(release),
    };
  } catch (error) {
    release();
    throw error;
  }
}

/** `before`: of the saved responses. @throws AppError invalid_config: a worker has others. */
function checkWeights(workers: readonly Worker[], before: WeightsId | null, folder: string): void {
  for (const { name, weights = null } of workers) {
    if (before === null || weights === null || before === weights) continue;
    const problem = `its tokens are of the weights ${before}, and ${name} has ${weights}`;
    throw new AppError("invalid_config", `--journal ${folder}: ${problem}`);
  }
}

/** The stream of each group's first response. */
function streamsOf(groups: readonly GroupSpec[]): Map<string, number> {
  const streams = new Map<string, number>();
  let next = 0;
  for (const { groupId, size } of groups) {
    streams.set(groupId, next);
    next += size;
  }
  return streams;
}

/** Digest of all that decides which tokens are drawn, except the weights. */
function digestOf(groups: readonly GroupSpec[]): string {
  const hash = createHash("sha256");
  for (const { groupId, prompt, size, sampling } of groups) {
    hash.update(JSON.stringify([groupId, size, prompt.length, sampling]));
    hash.update(new Uint8Array(prompt.buffer, prompt.byteOffset, prompt.byteLength));
  }
  return hash.digest("hex");
}
