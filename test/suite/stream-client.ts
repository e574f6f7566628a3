// For tests of the token streams: sockets without a network, and a client that holds a stream to its promise: every token
// once, in order.

import { assert, present } from "../../src/core/base/assert.ts";
import type { Socket } from "../../src/server/http.ts";
import type {
  FinishedEntry,
  JoinedEntry,
  RestartedEntry,
} from "../../src/server/stream/subscription.ts";

/** A socket whose other end reads when it is told to. */
export class FakeSocket implements Socket {
  readonly unread: (string | Uint8Array)[] = [];
  bufferedBytes = 0;
  /** Everything is read at once. */
  isReading = true;
  closed: { code: number; reason: string } | null = null;
  readonly #read: (data: string | Uint8Array) => void;

  constructor(read: (data: string | Uint8Array) => void) {
    this.#read = read;
  }

  send(data: string | Uint8Array): number {
    assert(this.closed === null, "nothing is sent after a close");
    if (this.isReading) {
      this.#read(data);
      return data.length;
    }
    this.unread.push(data);
    this.bufferedBytes += data.length;
    return -1;
  }

  getBufferedAmount(): number {
    return this.bufferedBytes;
  }

  /** The other end reads what waits. */
  readAll(): void {
    for (const data of this.unread.splice(0)) this.#read(data);
    this.bufferedBytes = 0;
  }

  close(code: number, reason: string): void {
    this.closed = { code, reason };
  }
}

/** A frame as a client sees it. */
export interface ReadFrame {
  readonly subscription: string;
  readonly state: string | null;
  readonly refused: { readonly code: string; readonly message: string } | null;
  readonly joined: readonly JoinedEntry[];
  readonly restarted: readonly RestartedEntry[];
  readonly tokens: readonly {
    request: number;
    offset: number;
    token_ids: number[];
  }[];
  readonly lengths: readonly { request: number; length: number }[];
  readonly finished: readonly FinishedEntry[];
  readonly groupsFinished: readonly string[];
  readonly weightEpoch: number | null;
  readonly progress: Readonly<Record<string, unknown>> | null;
}

type Fields = Record<string, unknown>;

export function readFrame(data: string | Uint8Array): ReadFrame {
  const fields = JSON.parse(String(data)) as Fields;
  const list = <T>(name: string): T[] => (fields[name] as T[] | undefined) ?? [];
  return {
    subscription: String(fields.subscription),
    state: (fields.state as string | undefined) ?? null,
    refused: (fields.refused as ReadFrame["refused"]) ?? null,
    joined: list("joined"),
    restarted: list("restarted"),
    tokens: list("tokens"),
    lengths: list("lengths"),
    finished: list("finished"),
    groupsFinished: list("groups_finished"),
    weightEpoch: (fields.weight_epoch as number | undefined) ?? null,
    progress: (fields.progress as Fields | undefined) ?? null,
  };
}

interface Known {
  readonly tokens: number[];
  attempt: number;
  finish: string | null;
}

/** The state of a client for each response; asserts that no token is missing or comes twice. */
export class Reader {
  readonly known = new Map<number, Known>();
  readonly frames: ReadFrame[] = [];

  read(frame: ReadFrame): void {
    this.frames.push(frame);
    for (const { request, offset, attempt } of frame.joined) {
      const known = this.known.get(request);
      if (known === undefined) {
        // What is before the offset was never asked for.
        const tokens = new Array<number>(offset).fill(-1);
        this.known.set(request, { tokens, attempt, finish: null });
      } else {
        if (known.attempt !== attempt) known.tokens.length = 0;
        known.attempt = attempt;
        assert(known.tokens.length === offset, `request ${request} goes on where it was`);
      }
    }
    for (const { request, attempt } of frame.restarted) {
      const known = present(this.known.get(request), "a restarted response is known");
      Object.assign(known, { tokens: [], attempt });
    }
    for (const { request, offset, token_ids } of frame.tokens) {
      const known = present(this.known.get(request), `request ${request} was declared`);
      assert(known.tokens.length === offset, `${request}: ${offset}, not ${known.tokens.length}`);
      assert(known.finish === null, "no tokens follow the end");
      known.tokens.push(...token_ids);
    }
    for (const { request, finish_reason, length } of frame.finished) {
      const known = present(this.known.get(request), "a finished response is known");
      assert(known.finish === null, "a response finishes once");
      assert(known.tokens.length === length, "all tokens are there at the end");
      known.finish = finish_reason;
    }
  }
}
