// Faults of one request in the engine: they end that request with a refusal, and nothing else. Every other error may be a bug
// in state that all requests share, and ends the engine.

import { AssertionError } from "../../core/base/assert.ts";
import type { Refusal } from "../../core/request/response.ts";

/** The engine does not support what the request needs. */
export const BAD_REQUEST = 400;
/** The engine fails at something that it should be able to do. */
export const BAD_GATEWAY = 502;

export class RequestFault extends Error {
  override readonly name = "RequestFault";
  readonly refusal: Refusal;

  constructor(refusal: Refusal) {
    super(refusal.message);
    this.refusal = refusal;
  }
}

/** The refusal of a request whose work threw this error; null: the error is a bug. */
export function refusalOf(error: unknown): Refusal | null {
  if (error instanceof RequestFault) return error.refusal;
  if (error instanceof AssertionError || !(error instanceof Error)) return null;
  return { status: BAD_GATEWAY, message: `the engine failed at this request: ${error.message}` };
}
