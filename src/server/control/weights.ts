// Weight updates over all engines: who has which weights, and when the next weight epoch begins.
//
//   idle --start--> open --update*--> (changed) --finish--> next epoch
//   idle --update, reload_weights, load_lora_adapter--> next epoch
//
// While weights change nothing runs. An engine that fails is fenced; those that succeeded go on. Where all
// refuse the request itself (4xx), nothing has changed.

import type { AppError } from "../../base/errors.ts";
import { type WeightEpoch, weightEpoch } from "../../base/ids.ts";
import type { ControlRequest } from "../../rollout/worker.ts";
import type { Exchange } from "../route.ts";
import type { Sidecar } from "../sidecar.ts";
import { type Member, reachable, type WorkerPool } from "../worker-pool.ts";
import { fanOut, merged, type Outcome, told } from "./fan-out.ts";

export interface WeightsOptions {
  readonly sidecar: Sidecar;
  readonly pool: WorkerPool;
}

/** Names for epochs kept, at most: responses in flight span few. */
const VERSIONS_MAX = 1024;

export class WeightUpdates {
  readonly #options: WeightsOptions;
  readonly #versions = new Map<WeightEpoch, string>();
  /** Engines that have taken every request of the open update so far; null: none is open. */
  #open: Set<Member> | null = null;
  #isChanged = false;
  #holds = false;
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

  start(exchange: Exchange): Promise<Response> {
    return this.#alone(async () => {
      await this.#hold();
      const outcome = await this.#send(await requestOf(exchange, this.#next));
      this.#open = succeeded(outcome);
      this.#isChanged = false;
      if (outcome.failed.length === outcome.answers.length) this.#close();
      return merged(outcome);
    });
  }

  /** Part of an open update, or an update by itself. */
  update(exchange: Exchange): Promise<Response> {
    return this.#alone(async () => {
      const request = await requestOf(exchange, this.#next);
      if (this.#open === null) return await this.#whole(request);
      const outcome = await this.#send(request);
      const good = succeeded(outcome);
      for (const member of this.#open) if (!good.has(member)) this.#open.delete(member);
      if (good.size > 0) this.#isChanged = true;
      return merged(outcome);
    });
  }

  finish(exchange: Exchange): Promise<Response> {
    return this.#alone(async () => {
      const request = await requestOf(exchange, this.#next);
      const outcome = await this.#send(request);
      const good = succeeded(outcome);
      const open = this.#open ?? good;
      const current = new Set([...open].filter((member) => good.has(member)));
      if (this.#isChanged && current.size > 0) {
        this.#name(this.#next, versionIn(request.body));
        await this.#advance(current, { request: null, outcome });
      }
      this.#close();
      return merged(outcome);
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
      const good = succeeded(outcome);
      if (good.size > 0) {
        this.#name(this.#next, versionIn(request.body));
        await this.#advance(good, { request: namesPath(request.body) ? request : null, outcome });
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
    return await fanOut(reachable(this.#options.pool.members), () => request);
  }

  async #advance(
    current: ReadonlySet<Member>,
    options: { request: ControlRequest | null; outcome: Outcome },
  ): Promise<void> {
    const { pool, sidecar } = this.#options;
    const reasons = new Map(options.outcome.failed.map((one) => [one.member, told(one)]));
    pool.changedWeights({
      current,
      request: options.request,
      reasonOf: (member) => reasons.get(member) ?? "missed a part of the weight update",
    });
    sidecar.advance(this.#next);
    await pool.unfence(current);
  }

  /** Nothing runs from here to `#close`, unless the trainer has paused by itself: then until it resumes. */
  async #hold(): Promise<void> {
    const { rollout } = this.#options.sidecar;
    if (rollout.pauseMode !== null || this.#holds) return;
    this.#holds = true;
    await rollout.pause("keep");
  }

  #close(): void {
    this.#open = null;
    this.#isChanged = false;
    if (!this.#holds) return;
    this.#holds = false;
    this.#options.sidecar.rollout.resume();
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

function succeeded(outcome: Outcome): Set<Member> {
  const good = new Set(outcome.answers.map(({ member }) => member));
  for (const { member } of outcome.failed) good.delete(member);
  return good;
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
