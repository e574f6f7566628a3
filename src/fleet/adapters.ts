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

export interface AdaptersOptions {
  readonly sidecar: FleetHost;
  readonly pool: WorkerPool;
  /** Names of the model itself, which no adapter can have. */
  readonly modelNames: readonly string[];
  readonly engines: UpdateEngines;
  /** The next epoch begins on `current`. */
  readonly advance: (
    current: ReadonlySet<Member>,
    asked: AdapterChange,
    outcome: EngineAnswers,
  ) => Promise<void>;
}

export class Adapters {
  readonly #options: AdaptersOptions;
  /** The operation that loads each adapter, in order of arrival. */
  readonly #loads = new Map<string, AdapterChange>();

  constructor(options: AdaptersOptions) {
    this.#options = options;
  }

  get names(): ReadonlySet<string> {
    return new Set(this.#loads.keys());
  }

  /** Operations that load the adapters into an engine that is opened later, after its weights. */
  get loads(): Recipe["adapters"] {
    return [...this.#loads.values()];
  }

  /** Call while generation is held. @throws AppError invalid_field, conflict: nothing has changed then. */
  async change(name: string, asked: AdapterChange): Promise<EngineAnswers> {
    return await (asked.change === "load" ? this.#load(name, asked) : this.#unload(name, asked));
  }

  async #load(name: string, asked: AdapterChange): Promise<EngineAnswers> {
    const { engines, modelNames } = this.#options;
    if (modelNames.includes(name)) throw invalid(`is ${name}, the model's own name`);
    if (!this.#loads.has(name) && this.#loads.size >= ADAPTERS_MAX) {
      throw invalid(`would be one more than ${ADAPTERS_MAX} adapters; unload another first`);
    }
    const available = await engines.available();
    for (const { worker } of available) {
      const support = worker.supports({ ...BASE, adapter: name });
      if (support.kind !== "refused") continue;
      throw invalid(`cannot be served: ${worker.name}: ${support.reason}`);
    }
    const outcome = await engines.sendTo(available, asked);
    if (outcome.failed.length === outcome.answers.length) {
      // An adapter of that name may be gone with the attempt to replace it.
      if (mayHaveChanged(outcome)) await this.#drop(name, asked, outcome);
      return outcome;
    }
    const tried = await engines.tried(outcome, name);
    // One that has gone is opened again, and gets it then.
    const refused = tried.failed.filter(({ answer }) => answer.status !== UNREACHABLE);
    if (refused.some(({ member }) => isServing(member))) {
      const took = outcome.answers.filter(({ answer }) => isSuccess(answer));
      const unload = { kind: "adapter", change: "unload", body: { lora_name: name } } as const;
      await engines.sendTo(took, unload);
      await this.#drop(name, asked, tried);
      return tried;
    }
    this.#loads.delete(name);
    // An engine that has been given it before takes it again.
    const body = { ...Object(asked.body), load_inplace: true };
    this.#loads.set(name, { ...asked, body });
    await this.#options.advance(serving(takenIn(tried)), asked, tried);
    return tried;
  }

  async #unload(name: string, asked: AdapterChange): Promise<EngineAnswers> {
    const unfinished = this.#options.sidecar.unfinishedOf(name);
    if (unfinished > 0) {
      throw new AppError("conflict", `${unfinished} requests of the adapter ${name} are in flight`);
    }
    const outcome = await this.#options.engines.send(asked);
    if (mayHaveChanged(outcome)) await this.#drop(name, asked, outcome);
    return outcome;
  }

  /** Stops serving the adapter; the base weights stay. */
  async #drop(name: string, asked: AdapterChange, outcome: EngineAnswers): Promise<void> {
    if (!this.#loads.delete(name)) {
      const reason = "has not answered about an adapter";
      const { pool } = this.#options;
      pool.tell(lostIn(outcome), () => ({ kind: "reopen", reason, hasOthers: false }));
      return;
    }
    const open = outcome.answers.filter(({ member, worker }) => member.worker === worker);
    await this.#options.advance(serving(open.map(({ member }) => member)), asked, outcome);
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

/** The engines that have the epoch's weights, be their connections lost or not: an adapter belongs to its base weights. */
function serving(members: Iterable<Member>): Set<Member> {
  return new Set([...members].filter(isServing));
}

function isServing({ state }: Member): boolean {
  return state === "ready" || state === "reconnecting";
}
