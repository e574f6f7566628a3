// The journal of one run: a rollout, or a request with an id, which is a run of one. Its first record describes the run;
// what its responses get follows, behind the tokens. Files belong to the host.

import { AppError } from "../base/errors.ts";
import type { Request } from "../request/buffer.ts";
import type { Rollout } from "../rollout/rollout.ts";
import type { HeldWeights } from "./held-weights.ts";
import { JournalLog } from "./log.ts";
import type { SavedRun } from "./read.ts";
import type { ChangeRecord, EpochRecord } from "./records.ts";

/** The content of a journal's file, as far as it is not written. */
export type FrameLog = Pick<JournalLog, "hasNews" | "take" | "stop">;

/** A journal's file. Its writes are behind the tokens; a failure ends it, and is reported elsewhere. */
export interface RunFile {
  /** Something is new in its log. */
  touch(): void;
  /** Resolves when the log's present content has been written, or can no longer be. */
  settled(): Promise<void>;
  close(): Promise<void>;
  /** The rollout is not kept any more. */
  remove(): Promise<void>;
}

/** Storage of the rollouts' journals. */
export interface RunFiles {
  /** The file of a run of an earlier process, or null, a new one. */
  open(log: JournalLog, saved: SavedRun | null): RunFile;
}

const FORMAT = 1;

/** @throws AppError invalid_config: the journal is of another release. */
export function checkFormat({ header: { format }, name }: SavedRun): void {
  if (format === FORMAT) return;
  const problem = `is of format ${JSON.stringify(format)}, and this release reads ${FORMAT}`;
  throw new AppError("invalid_config", `--journal: ${name} ${problem}; use another folder`);
}

export class RunJournal {
  readonly #log = new JournalLog();
  readonly #file: RunFile;
  readonly #saved: SavedRun | null;
  readonly #removed: () => void;
  #isClosed = false;

  /** `saved`: the run that it continues. `removed`: its run cannot be continued any more. */
  constructor(files: RunFiles, saved: SavedRun | null, removed: () => void = () => {}) {
    this.#file = files.open(this.#log, saved);
    this.#saved = saved;
    this.#removed = removed;
  }

  /** The first record of a journal that begins. */
  describe(header: object): void {
    this.#log.note(JSON.parse(JSON.stringify({ format: FORMAT, ...header }, asArrays)));
    this.#file.touch();
  }

  /** A client has changed the run; `SavedRun.changes` has it again. */
  change(change: object): void {
    const record: ChangeRecord = { type: "change", change };
    this.#log.note(JSON.parse(JSON.stringify(record, asArrays)));
    this.#file.touch();
  }

  /** Restores saved output to the run's requests, which have just joined, in the order in which they had finished. */
  follow(rollout: Pick<Rollout, "restore">, requests: readonly Request[]): void {
    const streams = new Set([...(this.#saved?.finished ?? []), ...requests.keys()]);
    for (const stream of streams) {
      const request = requests[stream];
      if (request === undefined) continue;
      const output = this.#saved?.outputs.get(stream) ?? null;
      const isResumed = output !== null && rollout.restore(request, output);
      const kept = isResumed ? output : null;
      if (kept?.finish == null) this.#log.follow(request, stream, kept);
    }
  }

  /** A request has joined the run that began without it; `stream`: its number in the run. */
  joined(request: Request, stream: number): void {
    this.#log.follow(request, stream, null);
  }

  changed(request: Request): void {
    this.#log.changed(request);
    this.#file.touch();
  }

  finished(request: Request): void {
    this.#log.finished(request);
    this.#file.touch();
  }

  /** Resolves when all that has finished is in the file, or never will be. */
  settled(): Promise<void> {
    return this.#file.settled();
  }

  advanced(held: HeldWeights): void {
    this.#log.note({ type: "epoch", ...held } satisfies EpochRecord);
    this.#file.touch();
  }

  /** Records that were written stay, to be continued. */
  close(): Promise<void> {
    this.#isClosed = true;
    return this.#file.close();
  }

  /** The run cannot be continued any more. Nothing happens once it is closed. */
  async remove(): Promise<void> {
    if (this.#isClosed) return;
    this.#removed();
    await this.#file.remove();
  }
}

/** JSON has no typed arrays. */
function asArrays(_key: string, value: unknown): unknown {
  return ArrayBuffer.isView(value) && !(value instanceof DataView)
    ? Array.from(value as Int32Array)
    : value;
}
