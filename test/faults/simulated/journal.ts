// The journal of a rollout in the fault tests: the production log and reader, on a disk that is an array.

import { JournalLog } from "../../../src/core/journal/log.ts";
import { readJournal } from "../../../src/core/journal/read.ts";
import type { RolloutRequest } from "../../../src/core/request/buffer.ts";
import type { SavedOutput } from "../../../src/core/request/response.ts";
import type { Random } from "../../suite/random.ts";

export class FaultJournal {
  #log = new JournalLog();
  #isFull = false;
  /** Frames that reached the disk. */
  #frames: Uint8Array[] = [];
  #saved: ReadonlyMap<number, SavedOutput> = new Map();

  constructor() {
    this.#log.note({ format: 1 });
  }

  /** The part of the response that an earlier process wrote; null: none. */
  saved(stream: number): SavedOutput | null {
    return this.#saved.get(stream) ?? null;
  }

  follow(request: RolloutRequest, stream: number, saved: SavedOutput | null): void {
    this.#log.follow(request, stream, saved);
  }

  changed(request: RolloutRequest): void {
    this.#log.changed(request);
  }

  finished(request: RolloutRequest): void {
    this.#log.finished(request);
  }

  flush(): void {
    if (!this.#isFull && this.#log.hasNews) this.#frames.push(this.#log.take().slice());
  }

  fill(): void {
    this.#isFull = true;
    this.#log.stop();
  }

  /** The process dies, perhaps in the middle of a write, and another one opens the journal. */
  reopen(random: Random): void {
    this.flush();
    const last = this.#frames.pop();
    if (last !== undefined) this.#frames.push(last.subarray(0, random.below(last.length + 1)));
    const bytes = new Uint8Array(Buffer.concat(this.#frames));
    const run = readJournal(bytes, "the journal");
    this.#saved = run?.outputs ?? new Map();
    this.#frames = run === null ? [] : [bytes.subarray(0, run.bytes)];
    this.#log = new JournalLog();
    if (this.#isFull) this.#log.stop();
    else if (run === null) this.#log.note({ format: 1 });
  }
}
