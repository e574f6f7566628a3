// Memory that the server keeps for finished work, and its bound, for /metrics. Bytes are those of the arrays that hold
// prompts, tokens and logprobs, and a share for the objects around them.

import type { RolloutRequest } from "../core/request/buffer.ts";

export interface Kept {
  readonly bytes: number;
  readonly bytesMax: number;
  /** Number of groups, rollouts or client requests that are kept. */
  readonly count: number;
}

/** Objects of one response: itself, its request, chunks, maps that hold them; as heap snapshots have it, rounded up. */
const RESPONSE_OVERHEAD = 2_048;
const PROMPT_OVERHEAD = 512;

/** Memory of a response without its prompt, which its siblings share. */
export function responseBytes({ response }: RolloutRequest): number {
  return response.bytes + RESPONSE_OVERHEAD;
}

export function promptBytes(prompt: Int32Array): number {
  return prompt.byteLength + PROMPT_OVERHEAD;
}
