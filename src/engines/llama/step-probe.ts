// Measures an empty context: real steps for the step-cost profile, and the size of a token's KV. It uses stream 0, and leaves
// it empty.

import type { Clock } from "../../core/base/clock.ts";
import type { LlamaContext } from "./context.ts";

/** Tokens with KV in a measured step, as in the middle of a short response: attention's cost grows with them. */
const PROBE_TOKENS = 96;
const PROBE_CHUNK = 32;

/** Bytes that one more token adds to exported KV. */
export function kvBytesPerToken(context: LlamaContext): number {
  const few = 2;
  const many = 18;
  fill(context, 0, few);
  const fewBytes = context.stateBytes(0);
  fill(context, few, many);
  const bytes = context.stateBytes(0) - fewBytes;
  context.clear(0);
  return Math.ceil(bytes / (many - few));
}

/** Calls `act` with a function that runs a step of the given number of rows, and returns its milliseconds. */
export function measureSteps<T>(
  context: LlamaContext,
  clock: Clock,
  act: (stepMs: (rows: number) => number) => T,
): T {
  for (let from = 0; from < PROBE_TOKENS; from += PROBE_CHUNK) {
    fill(context, from, from + PROBE_CHUNK);
  }
  const result = act((rows) => {
    for (let i = 0; i < rows; i += 1) context.add(i % 2, PROBE_TOKENS + i, 0, true);
    const startMs = clock.nowMs();
    context.decode();
    const ms = clock.nowMs() - startMs;
    context.truncate(0, PROBE_TOKENS);
    return ms;
  });
  context.clear(0);
  return result;
}

function fill(context: LlamaContext, from: number, to: number): void {
  for (let position = from; position < to; position += 1) {
    context.add(position % 2, position, 0, false);
  }
  context.decode();
}
