// The streams that are being written, and their clients: reported when the server stops and waits for them.

export interface OpenStream {
  readonly method: string;
  readonly path: string;
  /** Of the request. */
  readonly id: string;
  /** Address and port; null: not known. */
  readonly client: string | null;
  /** When its client last took something. */
  readonly takenMs: number;
}

export interface StreamHold {
  /** Its client has taken what was written so far. */
  took(): void;
  /** All is written: the connection sends the rest. */
  ended(): void;
}

export class OpenStreams {
  readonly #open = new Set<OpenStream>();
  readonly #nowMs: () => number;

  constructor(nowMs: () => number) {
    this.#nowMs = nowMs;
  }

  add(about: Omit<OpenStream, "takenMs">): StreamHold {
    const stream = { ...about, takenMs: this.#nowMs() };
    this.#open.add(stream);
    return {
      took: () => {
        stream.takenMs = this.#nowMs();
      },
      ended: () => {
        this.#open.delete(stream);
      },
    };
  }

  /** The oldest first. */
  list(): OpenStream[] {
    return [...this.#open];
  }
}
