// The slow, obvious twin of the modelled engine: one step at a time, every token of its own. No drafts.

import type { EngineTimes } from "../../src/tools/simulate/engine.ts";

export interface TwinRequest {
  readonly promptTokens: number;
  readonly tokens: number;
}

export interface TwinResult {
  /** Virtual ms at which request i ended. */
  readonly endMs: number[];
  readonly preemptions: number;
}

interface Live {
  readonly index: number;
  readonly request: TwinRequest;
  made: number;
}

/** All requests are there from the start, in this order. */
export function runStepByStep(
  times: EngineTimes,
  options: { kvTokens: number; slots: number; requests: readonly TwinRequest[] },
): TwinResult {
  const { kvTokens, slots, requests } = options;
  const waiting: Live[] = requests.map((request, index) => ({ index, request, made: 0 }));
  const running: Live[] = [];
  const endMs: number[] = requests.map(() => 0);
  const contextOf = ({ request, made }: Live) => request.promptTokens + made;
  const used = () => running.reduce((sum, live) => sum + contextOf(live), 0);
  let nowMs = 0;
  let preemptions = 0;
  while (waiting.length + running.length > 0) {
    let hasPreempted = false;
    while (used() + running.length > kvTokens) {
      const youngest = running.pop();
      if (youngest === undefined) break;
      waiting.unshift(youngest);
      preemptions += 1;
      hasPreempted = true;
    }
    while (!hasPreempted && running.length < slots) {
      const next = waiting[0];
      if (next === undefined || used() + contextOf(next) + 1 > kvTokens) break;
      waiting.shift();
      nowMs += times.prefillMs(contextOf(next), 0);
      running.push(next);
    }
    nowMs += times.stepMs(running.length, running.length, used());
    for (const live of [...running]) {
      live.made += 1;
      if (live.made < live.request.tokens) continue;
      endMs[live.index] = nowMs;
      running.splice(running.indexOf(live), 1);
    }
  }
  return { endMs, preemptions };
}
