// A sidecar without a server, whose random numbers count: 1, 2, 3 ...

import type { Clock } from "../../src/core/base/clock.ts";
import { weightEpoch } from "../../src/core/base/ids.ts";
import { EmbeddedKvPool } from "../../src/core/kv/embedded-pool.ts";
import { loadCore } from "../../src/core/wasm/load.ts";
import { Sidecar, type SidecarLimits, type SidecarOptions } from "../../src/server/sidecar.ts";

const core = loadCore();

export function newSidecar(
  clock: Clock,
  {
    chunkTokens = 4,
    limits,
    ...more
  }: { chunkTokens?: number; limits?: Partial<SidecarLimits> } & Partial<
    Pick<SidecarOptions, "vocabularySize" | "failed">
  > = {},
): Sidecar {
  let drawn = 0;
  return new Sidecar({
    rollout: {
      policy: "seer",
      draft: "grouped",
      chunkTokens,
      epoch: weightEpoch(0),
      pool: new EmbeddedKvPool({ clock, memoryBytesMax: 2 ** 20, disk: null }),
      clock,
      core,
    },
    vocabularySize: 1000,
    limits: {
      requestsMax: 10_000,
      groupsMax: 1_000,
      keptBytesMax: 64_000_000,
      keptResponsesMax: 10_000,
      ...limits,
    },
    random: () => {
      drawn += 1;
      return drawn;
    },
    ...more,
  });
}
