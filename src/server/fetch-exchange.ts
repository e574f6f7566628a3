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
  readonly headers: Headers;
  readonly streams: () => StreamHold;
  params = {};
  readonly #request: Request;
  readonly #options: ExchangeOptions;
  #read: Promise<JsonBody> | null = null;
  #isUnread = false;

  constructor(request: Request, options: ExchangeOptions) {
    this.id = options.id;
    this.method = request.method;
    this.url = options.url;
    this.headers = request.headers;
    this.streams = options.streams;
    this.#request = request;
    this.#options = options;
  }

  get signal(): AbortSignal {
    return this.#request.signal;
  }

  /** The body was begun, and not read to its end: nothing else can be read from the connection. */
  get isUnread(): boolean {
    return this.#isUnread;
  }

  async json(lists: IdLists = "plain"): Promise<unknown> {
    return (await this.#body()).json(lists);
  }

  async digest(): Promise<string> {
    return (await this.#body()).digest;
  }

  release(): void {
    this.#read = null;
  }

  #body(): Promise<JsonBody> {
    this.#read ??= this.#readOnce();
    return this.#read;
  }

  async #readOnce(): Promise<JsonBody> {
    const { body, reader } = this.#options;
    this.#isUnread = true;
    const { bytes, release } = await readBody(this.#request, body);
    this.#isUnread = false;
    try {
      return await reader.read(bytes, this.signal);
    } finally {
      release();
    }
  }
}
