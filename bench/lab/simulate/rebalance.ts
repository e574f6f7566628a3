// Re-balance of CANN's rollout recipe, on any scheduler: a step takes as long as the next larger graph that the engine has
// captured. As soon as every engine can drop to a smaller one, requests move from those above it to the others.

import type { RolloutRequest } from "../../../src/core/request/buffer.ts";
import type { Slot } from "../../../src/core/schedule/placement.ts";
import type { ScheduleCommand, Scheduler } from "../../../src/core/schedule/scheduler.ts";
import type { SchedulerParts } from "./iteration.ts";
import { type Graphs, graphOf } from "./step-time.ts";

/**
 * DeepSeek-V3, ms of a step by requests of a rank (cann-recipes-train, rollout_rebalance): what is published of graphs
 * that are captured for each batch size.
 */
export const CANN_GRAPHS: Graphs = {
  sizes: [1, 4, 8, 16, 32, 48, 64],
  ms: [54, 54, 55, 57, 61, 67, 76],
};

export function rebalancing(scheduler: Scheduler, { buffer, ranks }: SchedulerParts): Scheduler {
  const schedule = scheduler.schedule.bind(scheduler);
  scheduler.schedule = (slots, ...rest) => {
    const commands = schedule(slots, ...rest);
    const inFlight = slots.reduce((sum, slot) => sum + slot.inFlight, 0);
    // A request that waits would take the place of one that moves.
    const isSettled = inFlight === buffer.unfinished && commands.length === 0;
    if (isSettled) commands.push(...movesOf(slots, inFlight, ranks));
    return commands;
  };
  return scheduler;
}

/** Chunks that end, so that their requests go on at the least loaded engines. */
function movesOf(slots: readonly Slot[], inFlight: number, ranks: number): ScheduleCommand[] {
  const share = Math.ceil(inFlight / slots.length / ranks);
  const most = graphOf(CANN_GRAPHS, share) * ranks;
  return slots.flatMap(({ workerId, running }) =>
    [...running]
      .slice(most)
      .map((request): ScheduleCommand => ({ kind: "preempt", request, workerId })),
  );
}

/** The engine that a whole request runs on: its group's as in veRL, and after a move the least loaded one. */
export function pinOf(
  { response, group }: RolloutRequest,
  able: readonly Slot[],
): Slot | undefined {
  if (response.length === 0) return able[group.index % able.length];
  return able.reduce((least, slot) => (slot.inFlight < least.inFlight ? slot : least));
}
