// A request of Bun's server as the routes see it: its body is read once, when a route first wants it. The bytes are held
// no longer than it takes to parse them.

import { type BodyOptions, readBody } from "./body.ts";
import type { BodyReader, IdLists, JsonBody } from "./body-reader.ts";
import type { Exchange, StreamHold } from "./route.ts";

export interface ExchangeOptions {
  readonly id: string;
  readonly url: URL;
  readonly body: BodyOptions;
  readonly reader: BodyReader;
  readonly streams: () => StreamHold;
}

export class FetchExchange implements Exchange {
  readonly id: string;
  readonly method: string;
  readonly url: URL;
  params = {};
  readonly #request: Request;
  readonly #body: BodyOptions;
  readonly #reader: BodyReader;
  readonly streams: () => StreamHold;
  #read: Promise<JsonBody> | null = null;
  #isUnread = false;

  constructor(request: Request, { id, url, body, reader, streams }: ExchangeOptions) {
    this.id = id;
    this.method = request.method;
    this.url = url;
    this.#request = request;
    this.#body = body;
    this.#reader = reader;
    this.streams = streams;
  }

  get headers(): Headers {
    return this.#request.headers;
  }

  get signal(): AbortSignal {
    return this.#request.signal;
  }

  /** The body was begun, and not read to its end: nothing else can be read from the connection. */
  get isUnread(): boolean {
    return this.#isUnread;
  }

  async json(lists: IdLists = "plain"): Promise<unknown> {
    this.#read ??= this.#readOnce();
    return await (await this.#read).json(lists);
  }

  async digest(): Promise<string> {
    this.#read ??= this.#readOnce();
    return (await this.#read).digest;
  }

  release(): void {
    this.#read = null;
  }

  async #readOnce(): Promise<JsonBody> {
    this.#isUnread = true;
    const { bytes, release } = await readBody(this.#request, this.#body);
    this.#isUnread = false;
    try {
      return await this.#reader.read(bytes, this.signal);
    } finally {
      release();
    }
  }
}
