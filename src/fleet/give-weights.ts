// Gives an engine that was opened the weights of the others: the last complete ones, and the adapters on top of them.

import {
  type ControlAnswer,
  type EngineOperation,
  operationName,
} from "../core/rollout/operation.ts";
import type { EngineWorker } from "../core/rollout/worker.ts";
import type { Agreement } from "./agreement.ts";
import {
  type AskOptions,
  answerOf,
  isUnavailable,
  MODEL_CANARY,
  reasonOf,
  WAKE,
} from "./engines.ts";
import type { Check } from "./member.ts";

/** The operations that give an engine the weights that the others have. */
export interface Recipe {
  /** The operation that loads the base weights. first: the engine opens with them; unknown: only the trainer has them. */
  readonly base: EngineOperation | "first" | "unknown";
  /** LoRA adapters to load again on top of the base weights, in order. */
  readonly adapters: readonly EngineOperation[];
}

const IS_ASLEEP: EngineOperation = { kind: "ask", about: "is_asleep", settings: {} };

/**
 * Brings a newly opened engine to the recipe's weights, and tests them by a canary. `lacks`: how its base weights differ;
 * null: they do not. `isAsOpened`: it still has the weights that it was opened with. `isAwake`: the other engines are
 * awake, so it is woken.
 */
export async function giveWeights(
  worker: EngineWorker,
  { base, adapters }: Recipe,
  about: {
    lacks: string | null;
    isAsOpened: boolean;
    isAwake: boolean;
    agreement: Agreement;
    asking: AskOptions;
  },
): Promise<Check> {
  const { lacks, isAsOpened, isAwake, agreement, asking } = about;
  const ask = (operation: EngineOperation) => answerOf(worker, operation, asking);
  const hasBase = lacks === null;
  const refused = (reason: string): Check => {
    const what = lacks ?? "came back without the adapters that the others serve";
    return { kind: "behind", reason: `${what}${reason}`, isGiven: false };
  };
  const missedWake = isAwake && isAsleep(await ask(IS_ASLEEP));
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
    const problem = `${operationName(operation)}, answered ${status}: ${reasonOf(body)}`;
    if (isUnavailable(answer)) {
      return { kind: "silent", reason: `was given the current weights by ${problem}` };
    }
    return refused(`; given them by ${problem}`);
  }
  worker.send([{ kind: "advance", epoch: asking.nextEpoch }]);
  return { kind: "current" };
}

/** One that does not know the question cannot sleep. */
function isAsleep({ body }: ControlAnswer): boolean {
  return Object(body).is_sleeping === true;
}
