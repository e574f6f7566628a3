// What an engine refuses: capacities that it cannot have, and requests that could never run on it. Both are
// checked earlier, where users' input is parsed; a request that gets here all the same ends with a refusal.

import { AppError } from "../../core/base/errors.ts";
import type { RequestSpec, SamplingParams } from "../../core/request/request.ts";
import { outOfBounds, problemOf } from "../../core/request/sampling-bounds.ts";
import type { SamplingSupport } from "../../core/rollout/worker.ts";
import { BAD_REQUEST, RequestFault } from "./fault.ts";
import type { RunCommand } from "./sequence.ts";

/** Limit of decoding rows in a step: they share a batch with prefill and drafts. */
const SLOTS_MAX = 128;

export interface RunLimits {
  readonly contextTokens: number;
  readonly kvTokens: number;
  readonly vocabularySize: number;
}

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

/** Why the run can never succeed, in words that follow "the request"; null: it can. */
function runProblem(
  run: { request: RequestSpec; output: Int32Array; chunkTokens: number },
  { contextTokens, kvTokens, vocabularySize }: RunLimits,
): string | null {
  const { request, output, chunkTokens } = run;
  const { prompt, sampling } = request;
  const support = embeddedSupport(sampling, vocabularySize);
  if (support.kind === "refused") return `has ${support.field}, which ${support.reason}`;
  const tokens = prompt.length + sampling.tokensMax;
  if (prompt.length === 0) return "has an empty prompt";
  if (!Number.isInteger(chunkTokens) || chunkTokens < 1)
    return `has a chunk of ${chunkTokens} tokens`;
  if (tokens > contextTokens) return `may take ${tokens} tokens of ${contextTokens}`;
  // The last token is never computed.
  if (tokens - 1 > kvTokens) return `may take ${tokens - 1} KV tokens of ${kvTokens}`;
  return alienIn(prompt, "prompt", vocabularySize) ?? alienIn(output, "output", vocabularySize);
}

/** The engine supports every parameter within its range, and no fields of other engines' APIs. */
export function embeddedSupport(sampling: SamplingParams, vocabularySize: number): SamplingSupport {
  const refused = (field: string, reason: string) => ({ kind: "refused", field, reason }) as const;
  if ((sampling.adapter ?? null) !== null) {
    return refused("model", "is an adapter, which an embedded engine does not serve");
  }
  const [field] = Object.keys(sampling.engineFields ?? {});
  if (field !== undefined) return refused(field, "is not supported by the embedded engine");
  const wrong = outOfBounds(sampling, { vocabularySize });
  return wrong === null ? { kind: "divided" } : refused(wrong.field, problemOf(wrong));
}

/** The first token that is not in the vocabulary, in words; null: all are. */
function alienIn(tokens: Int32Array, where: string, vocabularySize: number): string | null {
  const alien = tokens.find((token) => token < 0 || token >= vocabularySize);
  if (alien === undefined) return null;
  return `holds token ${alien} in its ${where}, not in 0..${vocabularySize - 1}`;
}
