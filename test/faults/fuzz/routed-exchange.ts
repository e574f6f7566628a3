// A request as a router takes it, of bytes in memory: what FetchExchange is behind the HTTP server, without the server's
// Request and its streams. Its body is read by the real reader.

import type { BodyReader, IdLists, JsonBody } from "../../../src/server/body-reader.ts";
import type { Exchange, StreamHold } from "../../../src/server/route.ts";

const NO_HOLD: StreamHold = { took: () => {}, ended: () => {} };
const NOTHING = new Uint8Array(0);
let made = 0;

export class RoutedExchange implements Exchange {
  readonly id: string;
  readonly method: string;
  readonly url: URL;
  params = {};
  readonly headers = new Headers();
  readonly #body: Uint8Array<ArrayBuffer>;
  readonly #reader: BodyReader;
  /** Its client, which stays unless a test aborts. */
  readonly #client = new AbortController();
  #read: Promise<JsonBody> | null = null;

  constructor(parts: {
    method: string;
    url: URL;
    body: Uint8Array<ArrayBuffer> | null;
    reader: BodyReader;
  }) {
    made += 1;
    this.id = `fuzz-${made}`;
    this.method = parts.method;
    this.url = parts.url;
    this.#body = parts.body ?? NOTHING;
    this.#reader = parts.reader;
  }

  get signal(): AbortSignal {
    return this.#client.signal;
  }

  streams(): StreamHold {
    return NO_HOLD;
  }

  async json(lists: IdLists = "plain"): Promise<unknown> {
    this.#read ??= this.#reader.read(this.#body, this.signal);
    return await (await this.#read).json(lists);
  }

  async digest(): Promise<string> {
    this.#read ??= this.#reader.read(this.#body, this.signal);
    return (await this.#read).digest;
  }

  release(): void {
    this.#read = null;
  }
}
