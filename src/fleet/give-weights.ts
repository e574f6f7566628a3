// Gives an engine that was opened the weights of the others: the last complete ones, and the adapters on top of them.

import type { WeightEpoch } from "../core/base/ids.ts";
import { type EngineOperation, operationName } from "../core/rollout/operation.ts";
import type { Worker } from "../core/rollout/worker.ts";
import type { Agreement } from "./agreement.ts";
import {
  type AnswerLimits,
  answerOf,
  isUnavailable,
  MODEL_CANARY,
  reasonOf,
  WAKE,
} from "./engines.ts";
import type { Check } from "./member.ts";

/** The operations that bring an engine to the weights that the others have. */
export interface Recipe {
  /** The operation that gives complete weights. first: those it is opened with; unknown: only the trainer has them. */
  readonly base: EngineOperation | "first" | "unknown";
  /** Adapters on top of them; an engine gets each again. */
  readonly adapters: readonly EngineOperation[];
}

const IS_ASLEEP: EngineOperation = { kind: "ask", about: "is_asleep", settings: {} };

/**
 * `lacks`: how the engine's base weights differ; null: it has them, not the adapters. `isAsOpened`: it has those that it
 * was opened with. `isAwake`: the others are, so it is woken if it sleeps.
 */
export async function giveWeights(
  worker: Worker,
  { base, adapters }: Recipe,
  about: {
    epoch: WeightEpoch;
    lacks: string | null;
    isAsOpened: boolean;
    isAwake: boolean;
    agreement: Agreement;
    limits: AnswerLimits;
  },
): Promise<Check> {
  const { epoch, lacks, isAsOpened, isAwake, agreement, limits } = about;
  const ask = (operation: EngineOperation) =>
    answerOf(worker, { operation, nextEpoch: epoch }, limits);
  const hasBase = lacks === null;
  const refused = (reason: string): Check => {
    const what = lacks ?? "came back without the adapters that the others serve";
    return { kind: "behind", reason: `${what}${reason}`, isGiven: false };
  };
  const missedWake = isAwake && (await sleeps(worker, epoch, limits));
  if (missedWake) {
    const { status, body } = await ask(WAKE);
    if (status >= 300) {
      const reason = `sleeps, and answered ${status} to a wake-up: ${reasonOf(body)}`;
      return { kind: "silent", reason };
    }
  }
  // A server that cannot name its weights may have restarted with its first ones while no sidecar saw it.
  const isTrusted = base !== "unknown" || (worker.weights ?? null) !== null;
  if (hasBase && isTrusted && adapters.length === 0 && !missedWake) return { kind: "current" };
  const isFirst = base === "first" && isAsOpened;
  if (!hasBase && !isFirst && typeof base === "string") return refused("");
  const whole = hasBase || typeof base === "string" ? [] : [base];
  for (const operation of [...whole, ...adapters, MODEL_CANARY]) {
    const answer = await ask(operation);
    const { status, body } = answer;
    const difference = operation === MODEL_CANARY ? agreement.canaryDifference(body) : null;
    if (status < 300 && difference !== null) return refused(`; ${difference}`);
    if (status < 300) continue;
    const said = `${operationName(operation)}, answered ${status}: ${reasonOf(body)}`;
    if (isUnavailable(answer)) {
      return { kind: "silent", reason: `was given the current weights by ${said}` };
    }
    return refused(`; given them by ${said}`);
  }
  worker.send([{ kind: "advance", epoch }]);
  return { kind: "current" };
}

/** An engine that cannot say so has no sleep. */
export async function sleeps(worker: Worker, nextEpoch: WeightEpoch, limits: AnswerLimits) {
  const { body } = await answerOf(worker, { operation: IS_ASLEEP, nextEpoch }, limits);
  return Object(body).is_sleeping === true;
}
