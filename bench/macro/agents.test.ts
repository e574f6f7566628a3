// The modelled half of bench:agents: what is computed in virtual time is the same in every run.

import { expect, test } from "bun:test";
import { simulated } from "./agents/simulate.ts";
import { SHAPES, type Task, tasksOf } from "./agents/workload.ts";

const TEXTS = { vocabularySize: 1_376, eos: 1_359 };
const SIZES = { slots: 32, blockTokens: 32, kvBlocks: 96 };
/** Rounds differ from one another by as much. */
const RATIO_MAX = 1.15;

/** Each turn as a request without a session, which shares no prefix with others. */
function apart(tasks: readonly Task[]): Task[] {
  return tasks.flatMap(({ prompt: first, siblings }, i) => {
    const prompt = [...first];
    return siblings.flat().map((turn, j) => {
      const own = [TEXTS.vocabularySize + 100 * i + j, ...prompt.slice(1)];
      prompt.push(...turn.output, ...turn.observation);
      return { prompt: own, siblings: [[turn]] };
    });
  });
}

test.each([
  { workload: "single", host: "amd", isApart: false },
  { workload: "single", host: "amd", isApart: true },
  { workload: "weka", host: "amd", isApart: false },
  { workload: "weka", host: "amx", isApart: false },
] as const)(
  "agents: where KV is short, requests take no longer than where each session keeps to a server (%o)",
  async ({ workload, host, isApart }) => {
    const tasks = tasksOf(workload, 32 / SHAPES[workload].siblings, 43, TEXTS);
    const all = isApart ? apart(tasks) : tasks;
    const parts = { tasks: all, engines: 2, sizes: { ...SIZES, host }, isNamed: !isApart };
    const sticky = await simulated("sticky", parts);
    const ours = await simulated("foretoken_http", parts);
    expect(ours.iteration_s / sticky.iteration_s).toBeLessThan(RATIO_MAX);
    expect(ours.preempted).toBe(0);
  },
);
