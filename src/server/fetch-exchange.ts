// A request of Bun's server as the routes see it: its body is read once, when a route first wants it. The bytes are held
// no longer than it takes to parse them.

import { createHash } from "node:crypto";
import { AppError } from "../base/errors.ts";
import { JsonLimitError, parseJson } from "../base/json.ts";
import { type BodyOptions, readBody } from "./body.ts";
import type { StreamHold } from "./open-streams.ts";
import type { Exchange } from "./route.ts";

interface Parsed {
  readonly json: unknown;
  readonly digest: string;
}

export interface ExchangeOptions {
  readonly id: string;
  readonly url: URL;
  readonly body: BodyOptions;
  readonly streams: () => StreamHold;
}

export class FetchExchange implements Exchange {
  readonly id: string;
  readonly method: string;
  readonly url: URL;
  readonly params = {};
  readonly #request: Request;
  readonly #body: BodyOptions;
  readonly streams: () => StreamHold;
  #parsed: Promise<Parsed> | null = null;
  #isUnread = false;

  constructor(request: Request, { id, url, body, streams }: ExchangeOptions) {
    this.id = id;
    this.method = request.method;
    this.url = url;
    this.#request = request;
    this.#body = body;
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

  async json(): Promise<unknown> {
    this.#parsed ??= this.#parse();
    return (await this.#parsed).json;
  }

  async digest(): Promise<string> {
    this.#parsed ??= this.#parse();
    return (await this.#parsed).digest;
  }

  release(): void {
    this.#parsed = null;
  }

  async #parse(): Promise<Parsed> {
    this.#isUnread = true;
    const { bytes, release } = await readBody(this.#request, this.#body);
    this.#isUnread = false;
    try {
      const digest = createHash("sha256").update(bytes).digest("hex");
      return { json: bytes.length === 0 ? null : jsonOf(bytes), digest };
    } finally {
      release();
    }
  }
}

function jsonOf(bytes: Uint8Array): unknown {
  try {
    return parseJson(new TextDecoder("utf-8", { fatal: true }).decode(bytes));
  } catch (cause) {
    const reason = cause instanceof Error ? cause.message : String(cause);
    const problem = cause instanceof JsonLimitError ? "is refused" : "is not JSON";
    throw new AppError("invalid_json", `the body ${problem}: ${reason}`, { cause });
  }
}
