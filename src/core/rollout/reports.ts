// Engines' reports about a request besides its tokens: logprobs of its prompt, and its experts. Both are stored in the
// response unchanged, and do not affect scheduling.

import type { RolloutRequest } from "../request/buffer.ts";
import { ExpertRows } from "../request/expert-rows.ts";
import { expertsFrom, reportsPrompt } from "../request/request.ts";
import type { WorkerEvent } from "./worker.ts";

type ChunkDone = Extract<WorkerEvent, { kind: "chunk_done" }>;

/** The part of a `run` command about experts: from the first token on whose experts no chunk has reported. */
export function expertsWanted({ spec, response }: RolloutRequest): { expertsFrom?: number } {
  const from = expertsFrom(spec.sampling);
  return from === null ? {} : { expertsFrom: response.experts?.end ?? from };
}

/** All tokens have come, but the end of the chunk has not: does the client want more than tokens, which came with that? */
export function lacksReports({ spec: { sampling }, response }: RolloutRequest): boolean {
  if (expertsFrom(sampling) !== null) return true;
  return reportsPrompt(sampling) && response.promptReport === null;
}

/** Returns the problem of the reported experts; null: none. */
export function takeReports({ spec, response }: RolloutRequest, event: ChunkDone): string | null {
  response.promptReport ??= event.promptReport ?? null;
  const { experts } = event;
  const from = expertsFrom(spec.sampling);
  if (experts === undefined || from === null) return null;
  response.experts ??= new ExpertRows(from);
  return response.experts.append(experts.from, experts.npy);
}
