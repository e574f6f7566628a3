// The journal of one run: a rollout, or a single request with an id. Its first record describes the run; the responses'
// output follows, and generation does not wait for it. Files belong to the host.

import { AppError } from "../base/errors.ts";
import type { RolloutRequest } from "../request/buffer.ts";
import type { Rollout } from "../rollout/rollout.ts";
import type { HeldWeights } from "./held-weights.ts";
import { JournalLog } from "./log.ts";
import type { SavedRun } from "./read.ts";
import type { ChangeRecord, EpochRecord } from "./records.ts";

/** A journal's file. Generation does not wait for its writes; a failure ends them, and is reported elsewhere. */
export interface RunFile {
  /** Call when the log has new records. */
  touch(): void;
  /** Resolves when the log's present records are written, or writing has failed. */
  settled(): Promise<void>;
  close(): Promise<void>;
  remove(): Promise<void>;
}

export interface RunFiles {
  /** The file of an earlier process's run; `saved` null: a new file. */
  open(log: JournalLog, saved: SavedRun | null): RunFile;
}

const FORMAT = 1;

/** @throws AppError invalid_config: the journal is of another release. */
export function checkFormat({ header: { format }, name }: SavedRun): void {
  if (format === FORMAT) return;
  const problem = `is of format ${JSON.stringify(format)}, and this release reads ${FORMAT}`;
  throw new AppError("invalid_config", `--journal: ${name} ${problem}; use another folder`);
}

export class RunJournal extends JournalLog {
  readonly #file: RunFile;
  readonly #saved: SavedRun | null;
  readonly #removed: () => void;
  #isClosed = false;

  /** `saved`: the run that it continues. `removed` is called when the journal is deleted. */
  constructor(files: RunFiles, saved: SavedRun | null, removed: () => void = () => {}) {
    super(() => this.#file.touch());
    this.#file = files.open(this, saved);
    this.#saved = saved;
    this.#removed = removed;
  }

  describe(header: object): void {
    this.note(JSON.parse(JSON.stringify({ format: FORMAT, ...header }, asArrays)));
  }

  /** Records a client's change of the run; `SavedRun.changes` returns it. */
  change(change: object): void {
    const record: ChangeRecord = { type: "change", change };
    this.note(JSON.parse(JSON.stringify(record, asArrays)));
  }

  /** Restores saved output to the run's requests, which have just joined, in the order in which responses finished. */
  resume(rollout: Pick<Rollout, "restore">, requests: readonly RolloutRequest[]): void {
    const streams = new Set([...(this.#saved?.finished ?? []), ...requests.keys()]);
    for (const stream of streams) {
      const request = requests[stream];
      if (request === undefined) continue;
      const output = this.#saved?.outputs.get(stream) ?? null;
      const isResumed = output !== null && rollout.restore(request, output);
      const restored = isResumed ? output : null;
      if (restored?.finish == null) this.follow(request, stream, restored);
    }
  }

  /** Resolves when all records so far are written, or writing has failed. */
  settled(): Promise<void> {
    return this.#file.settled();
  }

  advanced(held: HeldWeights): void {
    this.note({ type: "epoch", ...held } satisfies EpochRecord);
  }

  /** Closes the file, from which another process can continue. */
  close(): Promise<void> {
    this.#isClosed = true;
    return this.#file.close();
  }

  /** Deletes the journal: the run need not be continued any more. Does nothing after `close`. */
  async remove(): Promise<void> {
    if (this.#isClosed) return;
    this.#removed();
    await this.#file.remove();
  }
}

/** Writes typed arrays as lists, since JSON has no such type. */
function asArrays(_key: string, value: unknown): unknown {
  return ArrayBuffer.isView(value) && !(value instanceof DataView)
    ? Array.from(value as Int32Array)
    : value;
}
