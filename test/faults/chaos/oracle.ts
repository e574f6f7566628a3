// What decides whether the responses of a rollout under faults are right: the port between a chaos run and the two ways to
// find out, comparison with an undisturbed run (`reference.ts`) and the model's own logprobs (`scoring.ts`).

import { readFileSync } from "node:fs";
import type { Collected, Verdict } from "./client.ts";
import { type ChaosPlan, JOBS } from "./plan.ts";
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

const PROMPTS_PER_JOB = 2;

/** Lines of the bundled prompts, other ones for each job. */
export function promptLines(path: string, job: number): string[] {
  const lines = readFileSync(path, "utf8").trim().split("\n");
  const first = PROMPTS_PER_JOB * (job % JOBS);
  return lines.slice(first, first + PROMPTS_PER_JOB);
}
