// The page's view over a sidecar with simulated workers.

import type { OpenWait } from "../../src/core/base/waits.ts";
import type { RequestSpec } from "../../src/core/request/request.ts";
import { CompletedGroups } from "../../src/server/completed-groups.ts";
import { LiveView } from "../../src/server/live/view.ts";
import { Bed, type BedOptions } from "./sidecar-bed.ts";

interface LiveBedOptions extends Pick<BedOptions, "later"> {
  readonly completedBytesMax?: number;
  readonly lengthOf?: (spec: RequestSpec) => number;
  readonly threadWaits?: readonly OpenWait[];
  /** Time that passes beside the bed's whenever the clock is read. */
  readonly laterMs?: () => number;
}

export function liveBed(options: LiveBedOptions = {}) {
  const { lengthOf = () => 40, threadWaits = [], laterMs = () => 0, later } = options;
  const bed = new Bed({ workers: 2, lengthOf, ...(later && { later }) });
  const members = bed.workers.map(({ workerId }) => ({
    source: { name: `vllm-${workerId}` },
    workerId,
    state: "ready",
    reason: null,
  }));
  const weights = {
    isUpdating: false,
    isAsleep: false,
    pauseState: () => {
      const mode = bed.sidecar.rollout.pauseMode;
      return { is_paused: mode !== null, reason: `paused with mode ${mode}` };
    },
  };
  const changes: { state: string; waiting: number }[] = [];
  const completed = new CompletedGroups(bed.sidecar, options.completedBytesMax ?? 2 ** 20);
  const view = new LiveView({
    sidecar: bed.sidecar,
    pool: { members, hasStarted: true } as never,
    weights,
    workers: () => [],
    clock: { nowMs: () => bed.clock.nowMs() + laterMs() },
    nowS: () => 1000,
    threadWaits: () => threadWaits,
    completed,
    every: () => () => {},
    changed: ({ state, waiting }) => changes.push({ state, waiting }),
  });
  const answer = () => view.answer() as unknown as Record<string, never> & { longest: object[] };
  return { bed, view, completed, weights, changes, answer, members };
}
