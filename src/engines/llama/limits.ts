// What an engine refuses: requests that could never run on it, and faults of one request, which end it and nothing else.
// Every other error may be a bug in state that all requests share, and ends the engine.

import { AssertionError } from "../../core/base/assert.ts";
import type { RequestSpec, SamplingParams } from "../../core/request/request.ts";
import type { Refusal } from "../../core/request/response.ts";
import { outOfBounds, problemOf } from "../../core/request/sampling-bounds.ts";
import type { SamplingSupport } from "../../core/rollout/worker.ts";
import type { RunCommand } from "./sequence.ts";

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

interface RunLimits {
  readonly contextTokens: number;
  readonly kvTokens: number;
  readonly vocabularySize: number;
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
