// Runs the same requests twice on portable kernels: scheduled, divided, moved and drafted over several engines; and each
// alone on one undisturbed engine. Every token and every logprob must be equal, bit for bit.

import { type RolloutJob, runRollout } from "../../compose/rollout.ts";
import { present } from "../../core/base/assert.ts";
import type { RolloutRequest } from "../../core/request/buffer.ts";
import type { RunReport } from "../../core/rollout/report.ts";

const POOL_BYTES = 256 * 1024 * 1024;

/** The report of `foretoken verify --json`. */
export interface VerifyReport {
  readonly requests: number;
  readonly equal_requests: number;
  readonly compared_tokens: number;
  /** Number of requests whose chunks ran on more than one worker. */
  readonly moved_requests: number;
  readonly differences: readonly string[];
  readonly full_stack: RunReport;
  readonly alone: RunReport;
}

/** Display of one of the two runs. */
interface RunDisplay extends Pick<RolloutJob, "events" | "note" | "onProgress"> {
  finish(): void;
}

interface Comparison extends Pick<RolloutJob, "model" | "plan" | "chunkTokens"> {
  readonly full: RolloutJob["sources"];
  /** An engine that runs one request at a time, undisturbed. */
  readonly alone: RolloutJob["sources"];
  readonly display: (title: string) => RunDisplay;
}

export async function compareRuns(comparison: Comparison): Promise<VerifyReport> {
  const full = await runOnce(comparison, "full stack", {
    sources: comparison.full,
    policy: "seer",
    draft: "grouped",
  });
  const alone = await runOnce(comparison, "alone", {
    sources: comparison.alone,
    policy: "group",
    draft: "off",
  });
  const differences: string[] = [];
  let equal = 0;
  let tokens = 0;
  let moved = 0;
  for (const [id, request] of full.requests) {
    const other = present(alone.requests.get(id), "both runs have the same requests");
    const difference = differenceOf(request, other);
    if (difference === null) equal += 1;
    else differences.push(`${id}: ${difference}`);
    tokens += request.response.length;
    if (new Set(request.response.chunks.map((chunk) => chunk.workerId)).size > 1) moved += 1;
  }
  return {
    requests: full.requests.size,
    equal_requests: equal,
    compared_tokens: tokens,
    moved_requests: moved,
    differences,
    full_stack: full.report,
    alone: alone.report,
  };
}

/** Runs a rollout; returns its requests by group name and index. */
async function runOnce(
  { model, plan, chunkTokens, display: open }: Comparison,
  title: string,
  on: Pick<RolloutJob, "sources" | "policy" | "draft">,
): Promise<{ report: RunReport; requests: Map<string, RolloutRequest> }> {
  const requests = new Map<string, RolloutRequest>();
  const { finish, ...told } = open(title);
  try {
    const report = await runRollout({
      ...on,
      ...told,
      model,
      plan,
      chunkTokens,
      poolMemoryBytes: POOL_BYTES,
      startS: null,
      onGroup: (id, finished) => {
        for (const request of finished) requests.set(`${id} ${request.spec.sampleIndex}`, request);
      },
      signal: new AbortController().signal,
    });
    return { report, requests };
  } finally {
    finish();
  }
}

/** The first difference between two responses to the same request; null: none. */
function differenceOf(a: RolloutRequest, b: RolloutRequest): string | null {
  const tokens = [a.response.tokens(), b.response.tokens()] as const;
  const bits = [bitsOf(a.response.logprobs()), bitsOf(b.response.logprobs())] as const;
  for (let i = 0; i < Math.max(tokens[0].length, tokens[1].length); i += 1) {
    if (tokens[0][i] !== tokens[1][i]) {
      return `token ${i} is ${tokens[0][i] ?? "absent"}, alone it is ${tokens[1][i] ?? "absent"}`;
    }
    if (bits[0][i] !== bits[1][i]) return `the logprob of token ${i} differs`;
  }
  if (a.response.finish !== b.response.finish) return "the finish reasons differ";
  return null;
}

function bitsOf(values: Float32Array): Uint32Array {
  return new Uint32Array(values.buffer, values.byteOffset, values.length);
}
