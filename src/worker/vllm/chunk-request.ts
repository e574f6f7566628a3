// What is asked of the server for the next attempt at a chunk: how much, how urgently, under which name and salt.

import type { WeightEpoch } from "../../base/ids.ts";
import type { ChunkRequest } from "./body.ts";
import type { ChunkRun } from "./chunk-run.ts";
import { streamInterval } from "./retry.ts";

/** Among requests of one urgency, those that have come furthest go first and are preempted last. */
const URGENT_PRIORITY = -(2 ** 31);

function adapterSalt({ spec }: ChunkRun): string {
  const { adapter = null } = spec.sampling;
  return adapter === null ? "" : `-a-${adapter}`;
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
  const tokensMax = Math.min(run.tokensLeft, room);
  return {
    name: `ft-${run.spec.requestId}-${run.chunk}-${run.attempt}`,
    spec: run.spec,
    offset: run.offset,
    tokens,
    tokensMax,
    isLast: tokensMax === room || run.offset + tokensMax >= run.spec.sampling.tokensMax,
    priority: (run.isUrgent ? URGENT_PRIORITY : 0) - run.offset,
    // KV of other weights is not found under this name.
    cacheSalt: `${server.cacheSalt}-w${server.epoch}${adapterSalt(run)}`,
    run: server.cacheSalt,
    epoch: server.epoch,
    streamInterval: streamInterval(server.openStreams, server.streamIntervalMax),
    draft: run.draft,
  };
}
