// Follows the responses of one run, and periodically writes their new output as a frame. Between two frames it only
// remembers which responses have changed: their tokens are read from the responses themselves, so a slow disk costs no
// memory, and many small batches of tokens become one record.

import { present } from "../base/assert.ts";
import type { Request } from "../request/buffer.ts";
import type { SavedOutput } from "../request/saved-output.ts";
import { type ChunkRecord, type FinishRecord, RecordWriter } from "./records.ts";

/** Not a number of restarts: what the journal may have of the stream is discarded. */
const NEVER = -1;

/** One response, and how much of it is in the journal. */
interface Followed {
  readonly request: Request;
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

  /** Something is to be written. */
  get hasNews(): boolean {
    return !this.#writer.isEmpty || this.#changed.length > 0 || this.#finished.length > 0;
  }

  /** A record of its own, the run's description first; written before what responses have new. */
  note(record: object): void {
    if (!this.#isStopped) this.#writer.json(record);
  }

  /** `saved`: what the journal has of the response already, which the response has too; null: it begins anew. */
  follow(request: Request, stream: number, saved: SavedOutput | null = null): void {
    this.#followed[request.index] = {
      request,
      stream,
      restarts: saved === null ? NEVER : request.response.restarts,
      tokens: saved?.tokens.length ?? 0,
      chunks: saved?.chunks.length ?? 0,
      isChanged: false,
    };
  }

  /** The response has new tokens, or restarts. */
  changed(request: Request): void {
    if (this.#isStopped) return;
    const followed = this.#followed[request.index];
    if (followed?.request !== request || followed.isChanged) return;
    followed.isChanged = true;
    this.#changed.push(followed);
  }

  /** `response.finish` is set. */
  finished(request: Request): void {
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

  /** New records, as a frame: valid until the next call of anything here. */
  take(): Uint8Array {
    for (const followed of this.#changed) this.#write(followed);
    this.#changed = [];
    // Behind all tokens, in the order in which they finished.
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
