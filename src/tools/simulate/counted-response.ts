// A response that knows its length but holds no tokens: a full iteration makes 250 million of them.

import { assert } from "../../core/base/assert.ts";
import type { Request } from "../../core/request/buffer.ts";
import { Response } from "../../core/request/response.ts";

class CountedResponse extends Response {
  #count = 0;

  override get length(): number {
    return this.#count;
  }

  /** The response now has `length` tokens, no fewer than before. */
  reach(length: number): void {
    assert(length >= this.#count && length <= this.tokensMax, "a response only grows");
    this.#count = length;
  }
}

/** Gives a request of the production buffer a response without tokens, before anybody has read it. */
export function countOnly(request: Request): void {
  const writable: { -readonly [K in keyof Request]: Request[K] } = request;
  writable.response = new CountedResponse(request.response.tokensMax);
}

/** The response of a request that went through `countOnly`. */
export function counted(request: Request): CountedResponse {
  const { response } = request;
  assert(response instanceof CountedResponse, "the simulator counts tokens");
  return response;
}
