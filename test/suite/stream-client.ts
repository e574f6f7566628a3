// For tests of the token streams: sockets without a network, and frames as a client sees them.

import { assert } from "../../src/core/base/assert.ts";
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
