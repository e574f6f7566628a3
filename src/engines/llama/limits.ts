// What an engine refuses: capacities it cannot have, and requests that could never run on it. Both are
// checked earlier, where users' input is parsed; a request that reaches the engine all the same ends with a refusal.

import { AppError } from "../../core/base/errors.ts";
import { type RunLimits, runProblem } from "../run-check.ts";
import { BAD_REQUEST, RequestFault } from "./fault.ts";
import type { RunCommand } from "./sequence.ts";

/** Decoding rows of a step: with prefill and drafts they share one batch. */
const SLOTS_MAX = 128;

/** @throws AppError invalid_config. */
export function checkCapacity(
  capacity: Omit<RunLimits, "vocabularySize"> & { slots: number; modelContextTokens: number },
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
export function checkRun(run: RunCommand, limits: RunLimits): void {
  const problem = runProblem(run, limits);
  if (problem === null) return;
  const message = `the request can never run on an embedded engine: it ${problem}`;
  throw new RequestFault({ status: BAD_REQUEST, message });
}
