// Weight updates over all engines: who has which weights, and when the next weight epoch begins.
//
//   idle --start--> open --update*--> (changed) --finish--> next epoch
//   idle --update, reload_weights, load_lora_adapter--> next epoch
//
// While weights change nothing runs, whoever pauses and resumes meanwhile. An engine that fails is fenced; those
// that succeeded go on. Where all refuse the request itself (4xx), nothing has changed; where none succeeded but
// one may have begun, the next epoch begins without engines.

import { AppError } from "../../base/errors.ts";
import { type WeightEpoch, weightEpoch } from "../../base/ids.ts";
import type { PauseMode } from "../../rollout/rollout.ts";
import type { ControlRequest, Worker } from "../../rollout/worker.ts";
import type { Exchange } from "../route.ts";
import type { Sidecar } from "../sidecar.ts";
import { connected, type Member, type WorkerPool } from "../worker-pool.ts";
import { fanOut, isSuccess, merged, type Outcome, told } from "./fan-out.ts";

export interface WeightsOptions {
  readonly sidecar: Sidecar;
  readonly pool: WorkerPool;
}

/** Names for epochs kept, at most: responses in flight span few. */
const VERSIONS_MAX = 1024;
/** Adapters that an engine opened anew is given, at most; beyond, it waits for the trainer. */
const ADAPTERS_MAX = 64;

/** Engines that have taken a request, and as which worker: one that was opened anew since has lost it. */
type Taken = Map<Member, Worker>;

export class WeightUpdates {
  readonly #options: WeightsOptions;
  readonly #versions = new Map<WeightEpoch, string>();
  /** Engines that have taken every request of the open update so far; null: none is open. */
  #open: Taken | null = null;
  /** Some engine has, or may have, other weights than those of the epoch. */
  #isChanged = false;
  /** What gives the first weights those of the epoch: a path, then adapters; null: only the trainer can. */
  #recipe: readonly ControlRequest[] | null = [];
  /** Nothing may run. */
  #isHeld = false;
  /** What follows once the weights have changed: the trainer has not paused by itself. */
  #resumes = false;
  /** One control request that changes weights at a time. */
  #tail: Promise<unknown> = Promise.resolve();

  constructor(options: WeightsOptions) {
    this.#options = options;
  }

  /** What clients know the weights of an epoch by: the trainer's own name for them, or the epoch's number. */
  version(epoch: WeightEpoch): string {
    return this.#versions.get(epoch) ?? String(epoch);
  }

  get current(): string {
    return this.version(this.#options.sidecar.rollout.epoch);
  }

  rename(version: string): void {
    this.#name(this.#options.sidecar.rollout.epoch, version);
  }

  /**
   * The trainer's pause, which outlasts an update under way.
   * @throws AppError conflict: it was resumed before it took hold, or waits for what an update holds back.
   */
  async pause(mode: PauseMode): Promise<void> {
    if (this.#isHeld && mode === "wait") {
      throw new AppError("conflict", "the weights are being updated: nothing can end meanwhile");
    }
    this.#resumes = false;
    if (await this.#options.sidecar.rollout.pause(mode)) return;
    throw new AppError("conflict", "resumed before the pause had taken hold");
  }

  /** The trainer's; while an update is under way it takes effect at its end. */
  resume(): void {
    if (this.#isHeld) this.#resumes = true;
    else this.#options.sidecar.rollout.resume();
  }

  start(exchange: Exchange): Promise<Response> {
    return this.#alone(async () => {
      const request = await requestOf(exchange, this.#next);
      await this.#hold();
      try {
        const outcome = await this.#send(request);
        const taken = takenIn(outcome);
        if (taken.size > 0) this.#open = taken;
        return merged(outcome);
      } finally {
        if (this.#open === null) this.#close();
      }
    });
  }

  /** Part of an open update, or an update by itself. */
  update(exchange: Exchange): Promise<Response> {
    return this.#alone(async () => {
      const request = await requestOf(exchange, this.#next);
      if (this.#open === null) return await this.#whole(request);
      const outcome = await this.#send(request);
      if (mayHaveChanged(outcome)) {
        this.#isChanged = true;
        this.#open = both(this.#open, takenIn(outcome));
      }
      return merged(outcome);
    });
  }

  finish(exchange: Exchange): Promise<Response> {
    return this.#alone(async () => {
      const request = await requestOf(exchange, this.#next);
      const outcome = await this.#send(request);
      // Refused by all: the update is still open, and can be finished in another way.
      if (outcome.answers.length > 0 && !mayHaveChanged(outcome)) return merged(outcome);
      const taken = takenIn(outcome);
      try {
        if (this.#isChanged) {
          const current = this.#open === null ? taken : both(this.#open, taken);
          await this.#advance(current, { request, recipe: null, outcome });
        }
        return merged(outcome);
      } finally {
        this.#close();
      }
    });
  }

  /** A request that changes the weights by itself, such as `reload_weights`. */
  whole(exchange: Exchange): Promise<Response> {
    return this.#alone(async () => await this.#whole(await requestOf(exchange, this.#next)));
  }

  async #whole(request: ControlRequest): Promise<Response> {
    await this.#hold();
    try {
      const outcome = await this.#send(request);
      if (mayHaveChanged(outcome)) {
        const taken = takenIn(outcome);
        // An adapter goes on top of weights: an engine that has others stays out.
        const current = isAdapter(request)
          ? both(
              this.#open ?? taken,
              new Map([...taken].filter(([{ state }]) => state === "ready")),
            )
          : taken;
        const recipe = current.size > 0 ? recipeAfter(this.#recipe, request) : null;
        await this.#advance(current, { request, recipe, outcome });
      }
      return merged(outcome);
    } finally {
      this.#close();
    }
  }

  get #next(): WeightEpoch {
    return weightEpoch(this.#options.sidecar.rollout.epoch + 1);
  }

  async #send(request: ControlRequest): Promise<Outcome> {
    return await fanOut(connected(this.#options.pool.members), () => request);
  }

  async #advance(
    taken: Taken,
    about: {
      request: ControlRequest;
      recipe: readonly ControlRequest[] | null;
      outcome: Outcome;
    },
  ): Promise<void> {
    const { pool, sidecar } = this.#options;
    const { request, recipe, outcome } = about;
    const current = new Set(taken.keys());
    const reasons = new Map(outcome.failed.map((one) => [one.member, told(one)]));
    const lost = outcome.failed.filter(({ answer }) => answer.status === UNREACHABLE);
    if (current.size > 0) this.#name(this.#next, versionIn(request.body));
    this.#recipe = recipe;
    pool.changedWeights({
      current,
      lost: new Set(lost.map(({ member }) => member)),
      recipe,
      reasonOf: (member) => reasons.get(member) ?? "missed a part of the weight update",
    });
    sidecar.advance(this.#next);
    await pool.unfence(current);
  }

  /** Nothing runs from here to `#close`, nor afterwards if the trainer has paused by itself, until it resumes. */
  async #hold(): Promise<void> {
    const { rollout } = this.#options.sidecar;
    if (!this.#isHeld) this.#resumes = rollout.pauseMode === null;
    this.#isHeld = true;
    // The trainer's own pause may not have taken hold yet.
    await rollout.pause(rollout.pauseMode ?? "keep");
  }

  #close(): void {
    this.#open = null;
    this.#isChanged = false;
    if (!this.#isHeld) return;
    this.#isHeld = false;
    if (this.#resumes) this.#options.sidecar.rollout.resume();
  }

  #name(epoch: WeightEpoch, version: string | null): void {
    if (version === null) return;
    this.#versions.set(epoch, version);
    for (const old of this.#versions.keys()) {
      if (this.#versions.size <= VERSIONS_MAX) return;
      this.#versions.delete(old);
    }
  }

  #alone(act: () => Promise<Response>): Promise<Response> {
    const done = this.#tail.then(act, act);
    this.#tail = done.catch((_: AppError | Error) => undefined);
    return done;
  }
}

export async function requestOf(
  exchange: Exchange,
  nextEpoch: WeightEpoch,
): Promise<ControlRequest> {
  return {
    method: exchange.method === "GET" ? "GET" : "POST",
    path: exchange.url.pathname,
    query: queryOf(exchange.url.searchParams),
    body: exchange.method === "GET" ? null : await exchange.json(),
    nextEpoch,
  };
}

/** Values of a key that comes several times (`tags`) are joined with commas. */
function queryOf(params: URLSearchParams): Record<string, string> {
  return Object.fromEntries([...params.keys()].map((key) => [key, params.getAll(key).join(",")]));
}

/** See ControlAnswer. */
const UNREACHABLE = 502;

/** An engine that has been opened anew since it answered is not among them. */
function takenIn(outcome: Outcome): Taken {
  const good = outcome.answers.filter(
    ({ member, worker, answer }) => isSuccess(answer) && member.worker === worker,
  );
  return new Map(good.map(({ member, worker }) => [member, worker]));
}

function both(one: Taken, other: Taken): Taken {
  return new Map([...one].filter(([member, worker]) => other.get(member) === worker));
}

/** An engine took it, or failed in the middle of it, or nobody knows. */
function mayHaveChanged({ answers }: Outcome): boolean {
  return answers.some(({ answer }) => answer.status < 400 || answer.status >= 500);
}

function versionIn(body: unknown): string | null {
  if (typeof body !== "object" || body === null || !("weight_version" in body)) return null;
  return typeof body.weight_version === "string" ? body.weight_version : null;
}

const PATH_FIELDS = ["weights_path", "weight_dir", "lora_path"];

/** The request says where the weights lie, so that it can be said again to an engine that comes later. */
function namesPath(body: unknown): boolean {
  if (typeof body !== "object" || body === null) return false;
  return Object.entries(body).some(
    ([field, value]) =>
      (PATH_FIELDS.includes(field) && typeof value === "string") || namesPath(value),
  );
}

const isAdapter = ({ path }: ControlRequest): boolean => path.endsWith("_lora_adapter");

/** What leads to the weights after `request`; null: nothing that can be said again. */
function recipeAfter(
  before: readonly ControlRequest[] | null,
  request: ControlRequest,
): readonly ControlRequest[] | null {
  if (!isAdapter(request)) return namesPath(request.body) ? [request] : null;
  if (before === null) return null;
  const name = adapterIn(request.body);
  const others = before.filter((one) => !isAdapter(one) || adapterIn(one.body) !== name);
  const recipe = namesPath(request.body) ? [...others, request] : others;
  return recipe.length > ADAPTERS_MAX ? null : recipe;
}

function adapterIn(body: unknown): unknown {
  return typeof body === "object" && body !== null ? Reflect.get(body, "lora_name") : undefined;
}
