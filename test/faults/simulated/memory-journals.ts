// Journals of a sidecar in memory, as a killed process leaves them: what was written stays, and the write under way may be
// torn. The production log and reader; only the files are simulated.

import type { JournalLog } from "../../../src/core/journal/log.ts";
import { readJournal, type SavedRun } from "../../../src/core/journal/read.ts";
import type { RunFile } from "../../../src/core/journal/run-journal.ts";
import type { RunJournals } from "../../../src/host/journal-file.ts";
import type { WeightsState } from "../../../src/host/weights-file.ts";

const FLUSH_MS = 50;

class MemoryFile implements RunFile {
  readonly #log: JournalLog;
  frames: Uint8Array[] = [];
  isRemoved = false;
  #isPlanned = false;

  constructor(log: JournalLog, frames: readonly Uint8Array[]) {
    this.#log = log;
    this.frames = [...frames];
  }

  touch(): void {
    if (this.#isPlanned || this.isRemoved) return;
    this.#isPlanned = true;
    setTimeout(() => void this.settled(), FLUSH_MS);
  }

  async settled(): Promise<void> {
    this.#isPlanned = false;
    if (!this.isRemoved && this.#log.hasNews) this.frames.push(this.#log.take().slice());
  }

  close(): Promise<void> {
    return this.settled();
  }

  async remove(): Promise<void> {
    this.isRemoved = true;
    this.#log.stop();
  }

  /** What is in it stays. */
  stop(): void {
    this.#log.stop();
  }

  /** The process dies in the middle of a write, of which this share reaches the disk. */
  tear(share: number): void {
    if (this.isRemoved || !this.#log.hasNews) return;
    const frame = this.#log.take();
    this.frames.push(frame.slice(0, Math.floor(share * frame.length)));
  }
}

/** The disk of processes that follow one another. */
export class MemoryDisk {
  #files: MemoryFile[] = [];
  #held: WeightsState | null = null;
  #isFull = false;

  /** Nothing is written any more. */
  fill(): void {
    this.#isFull = true;
    for (const file of this.#files) file.stop();
  }

  /** Journals for a process that begins: it finds what earlier ones left. */
  open(): RunJournals {
    const kept = new Map<SavedRun, MemoryFile>();
    for (const file of this.#files) {
      const bytes = new Uint8Array(Buffer.concat(file.frames));
      const run = file.isRemoved ? null : readJournal(bytes, "the journal");
      if (run !== null) kept.set(run, file);
    }
    // A process may die before it has opened the files of the one before.
    this.#files = [...kept.values()];
    const disk = this;
    const journals = {
      takeSaved: () => [...kept.keys()],
      open: (log: JournalLog, run: SavedRun | null) => {
        const before = run === null ? undefined : kept.get(run);
        const bytes = Buffer.concat(before?.frames ?? []).subarray(0, run?.bytes ?? 0);
        const file = new MemoryFile(log, before === undefined ? [] : [new Uint8Array(bytes)]);
        if (this.#isFull) file.stop();
        this.#files = [...this.#files.filter((one) => one !== before), file];
        return file;
      },
      weights: {
        get held() {
          return disk.#held;
        },
        write: (held: WeightsState) => {
          this.#held = JSON.parse(JSON.stringify(held));
        },
        settled: async () => {},
      },
      release: async () => {},
    };
    return journals as unknown as RunJournals;
  }

  tear(share: number): void {
    for (const file of this.#files) file.tear(share);
  }
}
