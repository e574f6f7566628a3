// What is asked of the server for the next attempt at a chunk: how much, how urgently, under which name and salt.

import { createHash } from "node:crypto";
import type { WeightEpoch } from "../../core/base/ids.ts";
import { reportsPrompt } from "../../core/request/request.ts";
import type { ChunkRun } from "./chunk-run.ts";
import type { ChunkRequest } from "./dialect.ts";
import { streamInterval } from "./retry.ts";

/** Among requests of one urgency, those that have come furthest go first and are preempted last. */
const URGENT_PRIORITY = -(2 ** 31);

/** Of a client's own salt: as long as 128 bits. */
const SALT_CHARACTERS = 32;

/** What separates KV of one weight epoch: the adapter, and the client's own salt. */
function ownSalt({ spec }: ChunkRun): string {
  const { adapter = null, cacheSalt = null } = spec.sampling;
  const hash = cacheSalt === null ? "" : createHash("sha256").update(cacheSalt).digest("hex");
  const salt = hash.slice(0, SALT_CHARACTERS);
  return `${adapter === null ? "" : `-a-${adapter}`}${salt === "" ? "" : `-s-${salt}`}`;
}

/** null: the text so far fills the server's context. */
export function chunkRequest(
  run: ChunkRun,
  server: {
    contextTokens: number;
    cacheSalt: string;
    epoch: WeightEpoch;
    openStreams: number;
    streamIntervalMax: number;
  },
): ChunkRequest | null {
  const tokens = run.context();
  const room = server.contextTokens - tokens.length;
  if (room < 1) return null;
  // `/v1/completions` answers 400 to more than there is room for.
  const form = run.offset === 0 && reportsPrompt(run.spec.sampling) ? "whole" : "stream";
  // One token brings the report on the prompt; what follows it comes as a stream.
  const isFirst = form === "whole" && run.spec.divisible;
  const tokensMax = isFirst ? 1 : Math.min(run.tokensLeft, room);
  return {
    name: `ft-${run.spec.requestId}-${run.chunk}-${run.attempt}`,
    spec: run.spec,
    offset: run.offset,
    tokens,
    tokensMax,
    isLast: tokensMax === room || run.offset + tokensMax >= run.spec.sampling.tokensMax,
    priority: (run.isUrgent ? URGENT_PRIORITY : 0) - run.offset,
    // KV of other weights is not found under this name.
    cacheSalt: `${server.cacheSalt}-w${server.epoch}${ownSalt(run)}`,
    run: server.cacheSalt,
    epoch: server.epoch,
    streamInterval: streamInterval(server.openStreams, server.streamIntervalMax),
    draft: run.draft,
    form,
    expertsFrom: run.expertsFrom,
  };
}
