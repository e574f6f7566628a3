// What decides whether the responses of a rollout under faults are right: the port between a chaos run and the two ways to
// find out, what stand-ins must generate (`foretold.ts`) and the model's own logprobs (`scoring.ts`).

import type { Collected, Verdict } from "./client.ts";
import type { ChaosPlan } from "./plan.ts";
import type { WeightsName } from "./response-line.ts";

/** Files from which the responses are generated. */
export interface Installation {
  readonly model: string;
  readonly prompts: string;
}

/** A request of the trainer. */
export interface Call {
  readonly path: string;
  readonly body: object;
}

/** The rollout of one seed. */
export interface Asked {
  /** Body of POST /v1/rollouts. */
  body(id: string): string;
  /** Tokens of all responses; an upper bound where lengths are drawn. */
  readonly tokens: number;
  /** Call when all faults are over. It may have the trainer update the weights. */
  judge(collected: Collected, trainer: Trainer): Promise<Verdict>;
}

export interface Trainer {
  /** Weights of the engines. */
  readonly current: WeightsName;
  /** Updates them to the other weights, if an engine takes them in time. */
  next(): Promise<void>;
}

export interface Oracle {
  /** Gives the engines these weights. */
  updateTo(weights: WeightsName): Call;
  /** `current`: the weights of the engines now. @throws AppError worker_failed: what is needed for it failed. */
  ask(plan: ChaosPlan, current: WeightsName): Promise<Asked>;
}
