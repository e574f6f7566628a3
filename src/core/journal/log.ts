// Follows the responses of one run, and periodically writes their new output as a frame. Between two frames it only
// remembers which responses have changed: their tokens are read from the responses themselves, so a slow disk costs no
// memory, and many small batches of tokens become one record.

import { present } from "../base/assert.ts";
import type { RolloutRequest } from "../request/buffer.ts";
import type { SavedOutput } from "../request/response.ts";
import { type ChunkRecord, type FinishRecord, RecordWriter } from "./records.ts";

/** Differs from every number of restarts, so that the first write discards what the journal has of the stream. */
const NEVER = -1;

/** A response, and how much of it is in the journal. */
interface Followed {
  readonly request: RolloutRequest;
  readonly stream: number;
  restarts: number;
  tokens: number;
  chunks: number;
  isChanged: boolean;
}

export class JournalLog {
  readonly #writer = new RecordWriter();
  /** Followed responses by request index. */
  readonly #followed: (Followed | undefined)[] = [];
  #changed: Followed[] = [];
  #finished: Followed[] = [];

  #isStopped = false;
  readonly #touch: () => void;

  /** `touch` is called when there are new records. */
  constructor(touch: () => void = () => {}) {
    this.#touch = touch;
  }

  get hasNews(): boolean {
    return !this.#writer.isEmpty || this.#changed.length > 0 || this.#finished.length > 0;
  }

  /** Adds a record that is not about a response's output: first the run's description. It precedes new output. */
  note(record: object): void {
    if (this.#isStopped) return;
    this.#writer.json(record);
    this.#touch();
  }

  /** Begins to follow a response. `saved`: the output that both journal and response have already; null: none. */
  follow(request: RolloutRequest, stream: number, saved: SavedOutput | null = null): void {
    this.#followed[request.index] = {
      request,
      stream,
      restarts: saved === null ? NEVER : request.response.restarts,
      tokens: saved?.tokens.length ?? 0,
      chunks: saved?.chunks.length ?? 0,
      isChanged: false,
    };
  }

  /** Call when the response has new tokens, or restarts. */
  changed(request: RolloutRequest): void {
    if (this.#isStopped) return;
    const followed = this.#followed[request.index];
    if (followed?.request !== request || followed.isChanged) return;
    followed.isChanged = true;
    this.#changed.push(followed);
    this.#touch();
  }

  /** Call when `response.finish` is set. */
  finished(request: RolloutRequest): void {
    if (this.#isStopped) return;
    const followed = this.#followed[request.index];
    if (followed?.request !== request) return;
    this.changed(request);
    this.#finished.push(followed);
    this.#followed[request.index] = undefined;
  }

  /** Ends all writing and releases the followed responses. */
  stop(): void {
    this.#isStopped = true;
    this.#followed.length = 0;
    this.#changed = [];
    this.#finished = [];
  }

  /** Takes the new records as a frame, which is valid until the next call: others may come while it is written. */
  take(): Uint8Array {
    for (const followed of this.#changed) this.#write(followed);
    this.#changed = [];
    // After all tokens, in the order in which responses finished.
    for (const { request, stream } of this.#finished) {
      const { finish, refusal } = request.response;
      if (finish === null) continue;
      this.#writer.json({ type: "finish", stream, reason: finish, refusal } satisfies FinishRecord);
    }
    this.#finished = [];
    return this.#writer.take();
  }

  #write(followed: Followed): void {
    const { request, stream } = followed;
    const { response } = request;
    followed.isChanged = false;
    if (followed.restarts !== response.restarts) {
      followed.restarts = response.restarts;
      followed.tokens = 0;
      followed.chunks = 0;
      this.#writer.restart(stream);
    }
    for (const { chunks } = response; followed.chunks < chunks.length; followed.chunks += 1) {
      const chunk = present(chunks[followed.chunks], "an index below the length has a chunk");
      const { workerId: worker, epoch, weights, offset } = chunk;
      const record: ChunkRecord = { type: "chunk", stream, worker, epoch, weights, offset };
      this.#writer.json(record);
    }
    if (response.length === followed.tokens) return;
    this.#writer.output(stream, response, followed.tokens);
    followed.tokens = response.length;
  }
}
