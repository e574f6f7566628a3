// Whether a run can succeed on an embedded engine. It is checked where users' input is parsed; a run that comes to an
// engine all the same ends with a refusal.

import type { RequestSpec, SamplingParams } from "../core/request/request.ts";
import { outOfBounds, problemOf } from "../core/request/sampling-bounds.ts";
import type { SamplingSupport } from "../core/rollout/worker.ts";

export interface RunLimits {
  readonly contextTokens: number;
  readonly kvTokens: number;
  readonly vocabularySize: number;
}

/** Reason why the run can never succeed, to follow "the request"; null: it can. */
export function runProblem(
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

/** An embedded engine, here or behind a link, draws all that is in bounds but fields of other engines' APIs. */
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

/** Names the first token that is not in the vocabulary; null: all are. */
function alienIn(tokens: Int32Array, where: string, vocabularySize: number): string | null {
  const alien = tokens.find((token) => token < 0 || token >= vocabularySize);
  if (alien === undefined) return null;
  return `holds token ${alien} in its ${where}, not in 0..${vocabularySize - 1}`;
}
