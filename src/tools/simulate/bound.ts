// A true lower bound on the wall time of an iteration on the modelled engines: no order, no placement and no knowledge
// of lengths can beat it. The gap to it is what a better scheduler could still win.

import type { GroupLengths } from "./lengths.ts";
import { StepModel } from "./step-time.ts";
import { engineSlots, type Workload } from "./workload.ts";

/**
 * Seconds; the larger of two bounds. `tokensPerStepMax`: what a step yields for one request at most, 1 without drafts.
 *
 * Path: the longest response alone on an engine, one row a step.
 * Work: a step of B requests with C tokens of context takes at least a + k C (a: the weights, k: a token of
 * KV) and what every row after the first adds (exchange between GPUs, host). Over all steps, the C add up to the
 * contexts of all tokens; a step has at most the KV budget of context and at most the engine's slots of requests, so
 * there are at least so many steps. Spread evenly over the instances.
 */
export function lowerBoundS(
  workload: Workload,
  lengths: GroupLengths,
  tokensPerStepMax: number,
): number {
  const model = new StepModel(workload);
  const { instances, promptTokens, deployment } = workload;
  const weightsMs = model.stepMs(1, 1, 0);
  const perContextMs = (model.stepMs(1, 1, model.kvTokens) - weightsMs) / model.kvTokens;
  let steps = 0;
  let context = 0;
  let longest = 0;
  for (const group of lengths) {
    for (const length of group) {
      steps += length / tokensPerStepMax;
      context += (length * (promptTokens + (length - 1) / 2)) / tokensPerStepMax;
      longest = Math.max(longest, length);
    }
  }
  const stepsLeast = Math.max(context / model.kvTokens, steps / engineSlots(deployment));

  const perRowMs = model.rowMs;
  const rowsMs = (steps - stepsLeast) * perRowMs;
  const workMs = (stepsLeast * weightsMs + rowsMs + context * perContextMs) / instances;
  const pathSteps = longest / tokensPerStepMax;
  const pathMs = pathSteps * (weightsMs + perContextMs * (promptTokens + (longest - 1) / 2));
  return Math.max(workMs, pathMs) / 1000;
}
