// Adapters (LoRA) over all engines. Clients name an adapter as the model, once every engine in service has loaded it. If one
// cannot, it keeps its weights and serves on, and the adapter is served by none.

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

/** A client's request to load or unload an adapter. */
export type AdapterChange = Extract<EngineOperation, { kind: "adapter" }>;

/** What a change of adapters needs; the caller pauses the rollout meanwhile. */
export interface AdapterSteps {
  readonly sidecar: FleetHost;
  readonly pool: WorkerPool;
  /** Names of the model itself, which no adapter can have. */
  readonly modelNames: readonly string[];
  readonly engines: UpdateEngines;
  /** The next epoch begins on `current`. */
  readonly advance: (current: ReadonlySet<Member>, outcome: EngineAnswers) => Promise<void>;
}

export class Adapters {
  /** The operation that loads each adapter, in order of arrival. */
  readonly #loads = new Map<string, AdapterChange>();

  get names(): ReadonlySet<string> {
    return new Set(this.#loads.keys());
  }

  /** Operations that load the adapters into an engine that is opened later, after its weights. */
  get loads(): Recipe["adapters"] {
    return [...this.#loads.values()];
  }

  /** @throws AppError invalid_field, conflict: nothing has changed then. */
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
    const unfinished = steps.sidecar.unfinishedOf(name);
    if (unfinished > 0) {
      throw new AppError("conflict", `${unfinished} requests of the adapter ${name} are in flight`);
    }
    const engines = await steps.engines.available();
    const outcome = await steps.engines.sendTo(engines, asked);
    if (mayHaveChanged(outcome)) await this.#drop(name, steps, outcome);
    return outcome;
  }

  /** Stops serving the adapter; the base weights stay. */
  async #drop(name: string, steps: AdapterSteps, outcome: EngineAnswers): Promise<void> {
    if (!this.#loads.delete(name)) {
      const reason = "has not answered about an adapter";
      steps.pool.tell(lostIn(outcome), () => ({ kind: "reopen", reason }));
      return;
    }
    const open = outcome.answers.filter(({ member, worker }) => member.worker === worker);
    await steps.advance(serving(new Set(open.map(({ member }) => member))), outcome);
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

/** The engines of `taken` that have the epoch's weights: an adapter belongs to its base weights. */
function serving(taken: ReadonlySet<Member>): Set<Member> {
  return new Set([...taken].filter(isServing));
}

/** Whether the engine has the epoch's weights, be its connection lost or not. */
function isServing({ state }: Member): boolean {
  return state === "ready" || state === "reconnecting";
}
