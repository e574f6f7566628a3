// Adapters (LoRA) over all engines: one is served where every engine that serves has it, under its name as the model's.
// An engine that cannot load one keeps its weights and serves on; the adapter is then served by none.

import { AppError, InvalidFieldError } from "../core/base/errors.ts";
import { SAMPLING_DEFAULTS, type SamplingParams } from "../core/request/request.ts";
import type { EngineOperation } from "../core/rollout/operation.ts";
import {
  type EngineAnswers,
  type FleetHost,
  isSuccess,
  lostIn,
  type Member,
  mayHaveChanged,
  takenIn,
  UNREACHABLE,
  type UpdateEngines,
} from "./engines.ts";
import type { Recipe } from "./give-weights.ts";
import type { WorkerPool } from "./pool.ts";

/** Adapters served at the same time, at most. */
const ADAPTERS_MAX = 64;

/** A load or an unload, as a client asks for it. */
export type AdapterChange = Extract<EngineOperation, { kind: "adapter" }>;

/** Parts of a change of adapters; the caller pauses the rollout meanwhile. */
export interface AdapterSteps {
  readonly sidecar: FleetHost;
  readonly pool: WorkerPool;
  /** Names of the model itself. */
  readonly modelNames: readonly string[];
  readonly engines: UpdateEngines;
  /** The next epoch begins on `current`. */
  readonly advance: (current: ReadonlySet<Member>, outcome: EngineAnswers) => Promise<void>;
}

export class Adapters {
  /** Operations that load the adapters, in the order of their arrival. */
  readonly #loads = new Map<string, AdapterChange>();

  get names(): ReadonlySet<string> {
    return new Set(this.#loads.keys());
  }

  /** Operations for an engine that is opened later, after its weights. */
  get loads(): Recipe["adapters"] {
    return [...this.#loads.values()];
  }

  /** @throws AppError invalid_field, conflict; then nothing has happened. */
  async change(name: string, asked: AdapterChange, steps: AdapterSteps): Promise<EngineAnswers> {
    if (asked.change === "load") return await this.#load(name, asked, steps);
    return await this.#unload(name, asked, steps);
  }

  async #load(name: string, asked: AdapterChange, steps: AdapterSteps): Promise<EngineAnswers> {
    if (steps.modelNames.includes(name)) throw invalid(`is ${name}, the model's own name`);
    if (!this.#loads.has(name) && this.#loads.size >= ADAPTERS_MAX) {
      const problem = `would be one more than ${ADAPTERS_MAX} adapters; unload another first`;
      throw invalid(problem);
    }
    const engines = await steps.engines.available();
    for (const { worker } of engines) {
      const support = worker.supports({ ...BASE, adapter: name });
      if (support.kind !== "refused") continue;
      throw invalid(`cannot be served: ${worker.name}: ${support.reason}`);
    }
    const outcome = await steps.engines.sendTo(engines, asked);
    if (!outcome.answers.some(({ answer }) => isSuccess(answer))) {
      // An adapter of that name may be gone with the attempt to replace it.
      if (mayHaveChanged(outcome)) await this.#drop(name, steps, outcome);
      return outcome;
    }
    const tried = await steps.engines.tried(outcome, name);
    // One that has gone is opened again, and gets it then.
    const refused = tried.failed.filter(({ answer }) => answer.status !== UNREACHABLE);
    if (refused.some(({ member }) => isServing(member))) {
      const took = engines.filter((_, index) => isSuccess(outcome.answers[index]?.answer));
      const unload = { kind: "adapter", change: "unload", body: { lora_name: name } } as const;
      await steps.engines.sendTo(took, unload);
      await this.#drop(name, steps, tried);
      return tried;
    }
    this.#loads.delete(name);
    // An engine that has been given it before takes it again.
    const body = { ...Object(asked.body), load_inplace: true };
    this.#loads.set(name, { ...asked, body });
    await steps.advance(serving(takenIn(tried)), tried);
    return tried;
  }

  async #unload(name: string, asked: AdapterChange, steps: AdapterSteps): Promise<EngineAnswers> {
    const inHand = steps.sidecar.unfinishedOf(name);
    if (inHand > 0) {
      throw new AppError("conflict", `${inHand} requests of the adapter ${name} are in flight`);
    }
    const engines = await steps.engines.available();
    const outcome = await steps.engines.sendTo(engines, asked);
    if (mayHaveChanged(outcome)) await this.#drop(name, steps, outcome);
    return outcome;
  }

  /** The adapter is served no more; the weights under it are as they were. */
  async #drop(
    name: string,
    { pool, advance }: AdapterSteps,
    outcome: EngineAnswers,
  ): Promise<void> {
    if (!this.#loads.delete(name)) {
      const reason = "has not answered about an adapter";
      pool.tell(lostIn(outcome), () => ({ kind: "reopen", reason }));
      return;
    }
    const there = outcome.answers.filter(({ member, worker }) => member.worker === worker);
    await advance(serving(new Set(there.map(({ member }) => member))), outcome);
  }
}

const BASE: SamplingParams = {
  temperature: 1,
  seed: 0,
  tokensMax: 1,
  stopTokenIds: [],
  ...SAMPLING_DEFAULTS,
};

function invalid(problem: string): InvalidFieldError {
  return new InvalidFieldError({ where: "request", field: "lora_name", problem });
}

/** An adapter belongs to its base weights: an engine with other weights is excluded. */
function serving(taken: ReadonlySet<Member>): Set<Member> {
  return new Set([...taken].filter(isServing));
}

/** The engine has the epoch's weights, also while its connection is made again. */
function isServing({ state }: Member): boolean {
  return state === "ready" || state === "reconnecting";
}
