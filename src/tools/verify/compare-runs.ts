// Runs the same requests twice on portable kernels: scheduled, divided, moved and drafted over several engines; and each
// alone on one undisturbed engine. Every token and every logprob must be equal, bit for bit.

import { runIteration } from "../../app.ts";
import { present } from "../../core/base/assert.ts";
import { weightEpoch } from "../../core/base/ids.ts";
import type { Group, GroupSpec, Request } from "../../core/request/buffer.ts";
import type { RunReport } from "../../core/rollout/report.ts";
import type { LlamaModel, LlamaWorkersOptions } from "../../engines/llama/open.ts";

const POOL_BYTES = 256 * 1024 * 1024;

/** Output of `--json`. */
export interface VerifyReport {
  readonly requests: number;
  readonly equal_requests: number;
  readonly compared_tokens: number;
  /** Requests whose chunks ran on more than one worker. */
  readonly moved_requests: number;
  readonly differences: readonly string[];
  readonly full_stack: RunReport;
  readonly alone: RunReport;
}

type Shape = Pick<RunOptions, "chunkTokens" | "policy" | "draft"> &
  Pick<LlamaWorkersOptions, "workers" | "slots" | "kvTokens">;
type RunOptions = Parameters<typeof runIteration>[0];

/** Shows how one of the two runs goes. */
export interface RunDisplay {
  update: RunOptions["onProgress"];
  note(text: string): void;
  finish(): void;
}

/** `model`: opened on portable kernels. `shape`: of the full stack. */
export async function compareRuns(
  model: LlamaModel,
  groups: readonly GroupSpec[],
  options: {
    shape: Pick<Shape, "workers" | "slots" | "kvTokens" | "chunkTokens">;
    display: (title: string) => RunDisplay;
  },
): Promise<VerifyReport> {
  const { workers, slots, kvTokens, chunkTokens } = options.shape;
  const full = await runOnce(model, groups, {
    display: options.display("full stack"),
    shape: { workers, slots, kvTokens, chunkTokens, policy: "seer", draft: "grouped" },
  });
  // One slot: an engine that never sees two requests, nor a chunk, nor a draft.
  const alone = await runOnce(model, groups, {
    display: options.display("alone"),
    shape: { workers: 1, slots: 1, kvTokens, chunkTokens, policy: "group", draft: "off" },
  });
  const differences: string[] = [];
  let equal = 0;
  let tokens = 0;
  let moved = 0;
  for (const [id, request] of full.requests) {
    const other = present(alone.requests.get(id), "both runs have the same requests");
    const difference = differenceOf(request, other);
    if (difference === null) equal += 1;
    else differences.push(`${request.spec.groupId} ${request.spec.sampleIndex}: ${difference}`);
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

async function runOnce(
  model: LlamaModel,
  groups: readonly GroupSpec[],
  { shape, display }: { shape: Shape; display: RunDisplay },
): Promise<{ report: RunReport; requests: Map<number, Request> }> {
  const requests = new Map<number, Request>();
  try {
    const { workers, slots, kvTokens, ...rest } = shape;
    const epoch = weightEpoch(0);
    // Right drafts and wrong ones, as many as possible: this is a check, not a race.
    const capacity = { workers, slots, kvTokens, draftsAlways: true, epoch } as const;
    const report = await runIteration({
      ...rest,
      openWorkers: (contextTokens) => model.openWorkers({ ...capacity, contextTokens }),
      deterministic: model.deterministic,
      epoch,
      groups,
      poolMemoryBytes: POOL_BYTES,
      poolDiskBytes: 0,
      poolDir: null,
      onGroup: (group: Group) => {
        for (const request of group.requests) requests.set(request.spec.requestId, request);
      },
      onFailed: ({ response }) => display.note(`failed: ${response.refusal?.message}`),
      onProgress: (progress) => display.update(progress),
      signal: new AbortController().signal,
    });
    return { report, requests };
  } finally {
    display.finish();
  }
}

/** The first difference between two responses to the same request; null: none. */
function differenceOf(a: Request, b: Request): string | null {
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
