// Journals on a real disk, one file for each run. Generation does not wait for them: new records are written some 20 times a
// second in one write, and reach the disk itself (fdatasync) once a second. So a killed process loses the tokens since the
// last write, and a power failure those of the last second or two.

import { Database } from "bun:sqlite";
import { randomUUID } from "node:crypto";
import {
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  writeFileSync,
} from "node:fs";
import { type FileHandle, open } from "node:fs/promises";
import { join } from "node:path";
import { AppError, errorText } from "../core/base/errors.ts";
import type { JournalLog } from "../core/journal/log.ts";
import { readJournal, type SavedRun } from "../core/journal/read.ts";
import { codeOf } from "./system.ts";
import { inTime, WeightsFile, writeAt } from "./weights-file.ts";

/** Only the owner may read journals: whoever has the tokens has the prompts and responses. */
const FOLDER_MODE = 0o700;
const FILE_MODE = 0o600;
const FLUSH_MS = 50;
const SYNC_MS = 1_000;

/** Reads a journal; null: there is no file, or no whole record in it. @throws AppError journal_damaged, output_failed. */
export function readJournalFile(path: string): SavedRun | null {
  try {
    return readJournal(readFileSync(path), path);
  } catch (cause) {
    if (codeOf(cause) === "ENOENT") return null;
    throw outputFailed("--journal", cause);
  }
}

function outputFailed(what: string, cause: unknown): AppError {
  if (cause instanceof AppError) return cause;
  return new AppError("output_failed", `${what}: ${errorText(cause)}`, { cause });
}

/** Names of our own files in a folder. They must be regular files: opening a FIFO would wait for a writer for ever. */
const OWN_NAME = /^(?:weights|lock|lock\.sqlite|trajectories-\d+)$|\.journal$/;

/** Locks of this process, kept here because garbage collection would release them. */
const locks = new Set<Database>();

/**
 * Creates the folder, locks it for this process, and returns the function that unlocks it. The lock is the operating
 * system's, on an empty database: it ends with the process, however that ends.
 * @throws AppError invalid_config: another process has the lock; output_failed: the folder cannot be created or locked.
 */
export function takeJournalFolder(folder: string): () => void {
  const holder = join(folder, "lock");
  try {
    mkdirSync(folder, { recursive: true, mode: FOLDER_MODE });
    for (const name of readdirSync(folder).filter((entry) => OWN_NAME.test(entry))) {
      const isFile = statSync(join(folder, name), { throwIfNoEntry: false })?.isFile();
      if (isFile === false) throw new Error(`${name} in it is no regular file`);
    }
    const database = new Database(`${holder}.sqlite`, { create: true });
    database.run("BEGIN EXCLUSIVE");
    locks.add(database);
    writeFileSync(holder, `${process.pid}`, { mode: FILE_MODE });
    return () => {
      locks.delete(database);
      database.close();
    };
  } catch (cause) {
    if (codeOf(cause) !== "SQLITE_BUSY") throw outputFailed(`--journal ${folder}`, cause);
    // The number is written after the lock is taken.
    const pid = existsSync(holder) ? ` ${readFileSync(holder, "utf8")}` : "";
    const problem = `another process${pid} uses it`;
    throw new AppError("invalid_config", `--journal ${folder}: ${problem}`, { cause });
  }
}

const SUFFIX = ".journal";

/** Paths of the journals in a folder, which may be absent. */
export function journalsIn(folder: string): string[] {
  const names = existsSync(folder) ? readdirSync(folder) : [];
  return names.filter((name) => name.endsWith(SUFFIX)).map((name) => join(folder, name));
}

/** The journals' files, and the lock of their folder. */
export type RunJournals = ReturnType<typeof openRunFiles>;

/**
 * Locks the folder and reads the journals in it: a file for each rollout of a sidecar.
 * @throws AppError as takeJournalFolder, readJournalFile.
 */
export function openRunFiles(folder: string, failed: (error: unknown) => void) {
  const release = takeJournalFolder(folder);
  // Saved runs are large: they are freed once their reader has dropped them.
  const paths = new WeakMap<SavedRun, string>();
  let saved: SavedRun[] = [];
  let weights: WeightsFile;
  try {
    for (const path of journalsIn(folder)) {
      const run = readJournalFile(path);
      if (run === null) {
        rmSync(path, { force: true });
        continue;
      }
      paths.set(run, path);
      saved.push(run);
    }
    weights = new WeightsFile(folder, failed);
  } catch (error) {
    release();
    throw outputFailed(`--journal ${folder}`, error);
  }
  return {
    /** Returns the runs of an earlier process, once: later calls return none. */
    takeSaved: (): SavedRun[] => {
      const runs = saved;
      saved = [];
      return runs;
    },
    open: (log: JournalLog, run: SavedRun | null): JournalFile => {
      const path = (run && paths.get(run)) ?? join(folder, `${randomUUID()}${SUFFIX}`);
      return new JournalFile({ path, log, keptBytes: run?.bytes ?? 0, failed });
    },
    /** Read them before they are written. */
    weights,
    /** Call after the files are closed. */
    release: async () => {
      await weights.close();
      release();
    },
  };
}

export interface JournalFileOptions {
  readonly path: string;
  readonly log: Pick<JournalLog, "hasNews" | "take" | "stop">;
  /** Bytes of the existing file to keep; the rest is cut off. 0: the file begins empty. */
  readonly keptBytes: number;
  /** Called once: writing has ended, and the written part stays readable. */
  readonly failed: (error: unknown) => void;
}

export class JournalFile {
  readonly #options: JournalFileOptions;
  readonly #opened: Promise<FileHandle | null>;
  #bytes: number;
  #flushTimer: ReturnType<typeof setTimeout> | null = null;
  #syncTimer: ReturnType<typeof setTimeout> | null = null;
  /** Resolves when the writes that have begun have ended. */
  #writing: Promise<void> = Promise.resolve();
  #isOver = false;

  constructor(options: JournalFileOptions) {
    this.#options = options;
    this.#bytes = options.keptBytes;
    this.#opened = this.#open();
  }

  /** Call when the log has new records: they are written soon. */
  touch(): void {
    if (this.#flushTimer !== null || this.#isOver) return;
    this.#flushTimer = setTimeout(() => void this.settled(), FLUSH_MS);
  }

  /** Writes the log's new records now. Resolves when they are written, or writing has failed. */
  settled(): Promise<void> {
    if (this.#flushTimer !== null) clearTimeout(this.#flushTimer);
    this.#flushTimer = null;
    this.#writing = this.#writing.then(() => this.#flush());
    return this.#writing;
  }

  /** Writes new records, makes the file durable, and closes it. */
  async close(): Promise<void> {
    await this.settled();
    this.#isOver = true;
    if (this.#flushTimer !== null) clearTimeout(this.#flushTimer);
    if (this.#syncTimer !== null) clearTimeout(this.#syncTimer);
    const file = await this.#opened;
    await file?.datasync().catch(() => undefined);
    await file?.close().catch(() => undefined);
  }

  async remove(): Promise<void> {
    // A file that is deleted before it is open is no failure.
    this.#isOver = true;
    this.#options.log.stop();
    this.#delete();
    await this.#opened;
    // The opening that was under way has made it anew.
    this.#delete();
    await this.close();
  }

  #delete(): void {
    try {
      rmSync(this.#options.path, { force: true });
    } catch (error) {
      this.#options.failed(error);
    }
  }

  async #open(): Promise<FileHandle | null> {
    const { path, keptBytes } = this.#options;
    try {
      const file = await open(path, keptBytes === 0 ? "w" : "r+", FILE_MODE);
      if (keptBytes > 0) await file.truncate(keptBytes);
      return file;
    } catch (error) {
      this.#fail(error);
      return null;
    }
  }

  async #flush(): Promise<void> {
    const file = await this.#opened;
    if (file === null || this.#isOver || !this.#options.log.hasNews) return;
    const frame = this.#options.log.take();
    try {
      await inTime(writeAt(file, frame, this.#bytes));
      this.#bytes += frame.byteLength;
    } catch (error) {
      // What was written before stays whole.
      await file.truncate(this.#bytes).catch(() => undefined);
      this.#fail(error);
      return;
    }
    this.#syncTimer ??= setTimeout(() => {
      this.#syncTimer = null;
      file.datasync().catch((error: unknown) => this.#fail(error));
    }, SYNC_MS);
  }

  #fail(error: unknown): void {
    if (this.#isOver) return;
    this.#isOver = true;
    this.#options.log.stop();
    this.#options.failed(error);
  }
}
