// A request of Bun's server as the routes see it: its body is read once, when a route first wants it.

import { AppError } from "../base/errors.ts";
import { JsonDepthError, parseJson } from "../base/json.ts";
import { readBody } from "./body.ts";
import type { Exchange } from "./route.ts";

export class FetchExchange implements Exchange {
  readonly method: string;
  readonly url: URL;
  readonly params = {};
  readonly #request: Request;
  readonly #bytesMax: number;
  #bytes: Promise<Uint8Array> | null = null;

  constructor(request: Request, url: URL, bytesMax: number) {
    this.method = request.method;
    this.url = url;
    this.#request = request;
    this.#bytesMax = bytesMax;
  }

  get headers(): Headers {
    return this.#request.headers;
  }

  get signal(): AbortSignal {
    return this.#request.signal;
  }

  bytes(): Promise<Uint8Array> {
    this.#bytes ??= readBody(this.#request, this.#bytesMax);
    return this.#bytes;
  }

  async json(): Promise<unknown> {
    const bytes = await this.bytes();
    if (bytes.length === 0) return null;
    try {
      return parseJson(new TextDecoder("utf-8", { fatal: true }).decode(bytes));
    } catch (cause) {
      const reason = cause instanceof Error ? cause.message : String(cause);
      const problem = cause instanceof JsonDepthError ? "is refused" : "is not JSON";
      throw new AppError("invalid_json", `the body ${problem}: ${reason}`, { cause });
    }
  }
}
