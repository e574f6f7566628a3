// `foretoken rollout --journal DIR`: what is generated is kept in DIR, and the same command run again continues from it.

import { createHash } from "node:crypto";
import { join } from "node:path";
import { AppError } from "../core/base/errors.ts";
import type { SavedRun } from "../core/journal/read.ts";
import { checkFormat, type RunFiles, RunJournal } from "../core/journal/run-journal.ts";
import type { GroupSpec, Request } from "../core/request/buffer.ts";
import type { SavedOutput } from "../core/request/saved-output.ts";
import type { IterationJournal } from "../core/rollout/iteration.ts";
import type { Worker } from "../core/rollout/worker.ts";
import { JournalFile, readJournalFile, takeJournalFolder } from "../host/journal-file.ts";

const FILE_NAME = "rollout.journal";

export class RolloutJournal implements IterationJournal {
  readonly #folder: string;
  readonly #release: () => void;
  readonly #saved: SavedRun | null;
  readonly #streams: ReadonlyMap<string, number>;
  readonly #journal: RunJournal;

  /**
   * @throws AppError invalid_config: another process uses the folder, or it holds another run; journal_damaged;
   * output_failed: it cannot be written.
   */
  constructor(folder: string, groups: readonly GroupSpec[], failed: (error: unknown) => void) {
    this.#folder = folder;
    this.#release = takeJournalFolder(folder);
    try {
      const path = join(folder, FILE_NAME);
      this.#saved = readJournalFile(path);
      const job = digestOf(groups);
      if (this.#saved !== null) checkFormat(this.#saved);
      if (this.#saved !== null && this.#saved.header.job !== job) {
        const problem = "holds another run: its prompts, their number or its sampling differ";
        throw new AppError("invalid_config", `--journal ${folder}: ${problem}; use another one`);
      }
      const files: RunFiles = {
        open: (log, run) => new JournalFile({ path, log, keptBytes: run?.bytes ?? 0, failed }),
      };
      this.#journal = new RunJournal(files, this.#saved);
      if (this.#saved === null) this.#journal.describe({ job });
    } catch (error) {
      this.#release();
      throw error;
    }
    this.#streams = streamsOf(groups);
  }

  /** Output of earlier processes: responses that have ended, and the tokens of all. */
  get kept(): { readonly ended: number; readonly tokens: number } {
    const outputs = [...(this.#saved?.outputs.values() ?? [])];
    const ended = outputs.filter(({ finish }) => finish !== null).length;
    return { ended, tokens: outputs.reduce((sum, { tokens }) => sum + tokens.length, 0) };
  }

  /** @throws AppError invalid_config: the saved responses are of other weights than the workers'. */
  check(workers: readonly Worker[]): void {
    const before = this.#saved?.last?.weights ?? null;
    for (const { name, weights = null } of workers) {
      if (before === null || weights === null || before === weights) continue;
      const problem = `its tokens are of the weights ${before}, and ${name} has ${weights}`;
      throw new AppError("invalid_config", `--journal ${this.#folder}: ${problem}`);
    }
  }

  saved(request: Request): SavedOutput | null {
    return this.#saved?.outputs.get(this.#streamOf(request)) ?? null;
  }

  began(request: Request, saved: SavedOutput | null): void {
    this.#journal.began(request, this.#streamOf(request), saved);
  }

  changed(request: Request): void {
    this.#journal.changed(request);
  }

  finished(request: Request): void {
    this.#journal.finished(request);
  }

  async close(): Promise<void> {
    await this.#journal.close();
    this.#release();
  }

  #streamOf({ spec }: Request): number {
    return (this.#streams.get(spec.groupId) ?? 0) + spec.sampleIndex;
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
