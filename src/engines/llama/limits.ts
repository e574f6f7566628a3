// What an engine refuses: capacities it cannot have, and requests that could never run on it. Both are
// checked earlier, where users' input is parsed; a request that reaches the engine all the same ends with a refusal.

import { AppError } from "../../core/base/errors.ts";
import { embeddedSupport, outOfBounds, problemOf } from "../../core/request/sampling-bounds.ts";
import { BAD_REQUEST, RequestFault } from "./fault.ts";
import type { RunCommand } from "./sequence.ts";

/** Decoding rows of a step: with prefill and drafts they share one batch. */
const SLOTS_MAX = 128;

export interface EngineLimits {
  readonly kvTokens: number;
  readonly contextTokens: number;
}

/** @throws AppError invalid_config. */
export function checkCapacity(
  capacity: EngineLimits & { slots: number; modelContextTokens: number },
): void {
  check("slots", capacity.slots, { min: 1, max: SLOTS_MAX });
  check("kvTokens", capacity.kvTokens, { min: 1, max: Number.MAX_SAFE_INTEGER });
  check("contextTokens", capacity.contextTokens, { min: 2, max: capacity.modelContextTokens });
}

function check(name: string, value: number, range: { min: number; max: number }): void {
  if (Number.isInteger(value) && value >= range.min && value <= range.max) return;
  throw new AppError(
    "invalid_config",
    `embedded engine: ${name} is ${value}, not in ${range.min}..${range.max}`,
  );
}

/** @throws RequestFault. */
export function checkRun(
  { request, output, chunkTokens }: RunCommand,
  limits: EngineLimits & { vocabularySize: number },
): void {
  const tokens = request.prompt.length + request.sampling.tokensMax;
  const refuse = (problem: string): never => {
    const message = `the request can never run on an embedded engine: it ${problem}`;
    throw new RequestFault({ status: BAD_REQUEST, message });
  };
  if (request.prompt.length === 0) refuse("has an empty prompt");
  if (!Number.isInteger(chunkTokens) || chunkTokens < 1)
    refuse(`has a chunk of ${chunkTokens} tokens`);
  if (tokens > limits.contextTokens) {
    refuse(`may take ${tokens} tokens, the context holds ${limits.contextTokens}`);
  }
  // The last token is never computed.
  if (tokens - 1 > limits.kvTokens) {
    refuse(`may take ${tokens - 1} KV tokens, the budget is ${limits.kvTokens}`);
  }
  const wrong = outOfBounds(request.sampling, limits);
  if (wrong !== null) refuse(`has ${wrong.field}, which ${problemOf(wrong)}`);
  const support = embeddedSupport(request.sampling, limits.vocabularySize);
  if (support.kind === "refused") refuse(`has ${support.field}, which ${support.reason}`);
  for (const list of [request.prompt, output]) {
    const alien = list.find((token) => token < 0 || token >= limits.vocabularySize);
    if (alien !== undefined) {
      refuse(`holds token ${alien}, the vocabulary ends at ${limits.vocabularySize - 1}`);
    }
  }
}
