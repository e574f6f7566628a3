// A sidecar without a server over simulated workers, in the time of a test: what the fixtures of the control plane, the data
// plane, and the streams stand on. Its random numbers count: 1, 2, 3 ...

import { assert } from "../../src/core/base/assert.ts";
import type { Clock } from "../../src/core/base/clock.ts";
import { weightEpoch, workerId } from "../../src/core/base/ids.ts";
import type { RolloutRequest } from "../../src/core/request/buffer.ts";
import type { RolloutOptions } from "../../src/core/rollout/rollout.ts";
import { loadCore } from "../../src/core/wasm/load.ts";
import { EmbeddedKvPool } from "../../src/host/embedded-pool.ts";
import {
  type GenerationSpec,
  Sidecar,
  type SidecarLimits,
  type SidecarOptions,
} from "../../src/server/sidecar.ts";
import { type LengthOf, SimulatedWorker } from "../faults/simulated/worker.ts";
import { ManualClock } from "./manual-clock.ts";
import { samplingOf } from "./request-spec.ts";

const core = loadCore();
const WAIT_MS_MAX = 120_000;

export function newSidecar(
  clock: Clock,
  {
    chunkTokens = 4,
    draft = "grouped",
    later,
    ...more
  }: Partial<Pick<RolloutOptions, "chunkTokens" | "draft" | "later">> &
    Partial<Pick<SidecarOptions, "vocabularySize" | "failed" | "limits">> = {},
): Sidecar {
  let drawn = 0;
  return new Sidecar({
    rollout: {
      ...{ policy: "seer", draft, chunkTokens, epoch: weightEpoch(0), clock, core },
      pool: new EmbeddedKvPool({ memoryBytesMax: 2 ** 20, disk: null }),
      ...(later && { later }),
    },
    vocabularySize: 1000,
    random: () => {
      drawn += 1;
      return drawn;
    },
    ...more,
  });
}

export const DEAF = { tokens: () => {}, finished: () => {}, restarted: () => {} };

export function specFor(
  prompt: readonly number[],
  n: number,
  fields: Partial<GenerationSpec> = {},
): GenerationSpec {
  return {
    prompt: Int32Array.from(prompt),
    n,
    sampling: samplingOf({ tokensMax: 100 }),
    ...{ seeded: false, group: null, priority: 0 },
    ...fields,
  };
}

export interface BedOptions {
  readonly workers: number;
  readonly lengthOf: LengthOf;
  readonly isWhole?: boolean;
  readonly slots?: number;
  readonly kvTokens?: number;
  readonly contextTokens?: number;
  readonly chunkTokens?: number;
  readonly vocabularySize?: number;
  readonly limits?: Partial<SidecarLimits>;
  readonly failed?: (error: unknown) => void;
  readonly later?: NonNullable<RolloutOptions["later"]>;
}

export class Bed {
  readonly clock = new ManualClock();
  readonly sidecar: Sidecar;
  readonly workers: SimulatedWorker[] = [];
  readonly #options: BedOptions;

  constructor(options: BedOptions) {
    this.#options = options;
    const { chunkTokens = 7, vocabularySize = 1000, limits = {}, failed = () => {} } = options;
    const later = options.later === undefined ? {} : { later: options.later };
    const fields = { chunkTokens, vocabularySize, limits, failed, ...later };
    this.sidecar = newSidecar(this.clock, fields);
    for (let i = 0; i < options.workers; i += 1) this.addWorker();
  }

  addWorker(): void {
    const { lengthOf, isWhole = false, ...given } = this.#options;
    const { slots = 4, kvTokens = 4_000, contextTokens = 1_000 } = given;
    const worker = new SimulatedWorker({
      workerId: workerId(this.workers.length),
      capacity: { slots, kvTokens, contextTokens, kvBytesPerToken: 8 },
      epoch: this.sidecar.rollout.epoch,
      ...{ lengthOf, isWhole },
    });
    this.workers.push(worker);
    this.sidecar.rollout.addWorker(worker);
  }

  /** Requests of a client that listens to nothing. */
  generate(
    prompt: readonly number[],
    n: number,
    fields: Partial<GenerationSpec> = {},
  ): readonly RolloutRequest[] {
    return this.sidecar.generate(specFor(prompt, n, fields), DEAF).requests;
  }

  /** One engine step of every worker, and what follows from it. */
  async step(): Promise<void> {
    await settled();
    this.clock.advance(5);
    for (const worker of this.workers) worker.step();
    await settled();
  }

  /** Runs until all requests are finished. */
  async finish(): Promise<void> {
    for (let i = 0; this.sidecar.rollout.unfinished > 0; i += 1) {
      assert(i < 20_000, "the rollout comes to an end");
      await this.step();
    }
  }
}

async function settled(): Promise<void> {
  for (let i = 0; i < 8; i += 1) await Promise.resolve();
}

/** Takes steps until the promise is settled. */
export async function untilSettled<T>(promise: Promise<T>, step: () => Promise<void>): Promise<T> {
  let isSettled = false;
  const settle = () => {
    isSettled = true;
  };
  promise.then(settle, settle);
  const endMs = performance.now() + WAIT_MS_MAX;
  while (!isSettled && performance.now() < endMs) await step();
  assert(isSettled, "the promise is settled in time");
  return await promise;
}
