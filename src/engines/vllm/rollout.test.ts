// The rollout over workers on stand-ins for vLLM or SGLang that show every fault there is, thousands of requests by seed: each
// response comes out whole, once, in order. A failing seed says how to repeat it: SEED=n bun test <this file>.

import { expect, test } from "bun:test";
import { FAULT_KINDS, type FaultPlan, seededFaults } from "../../../test/faults/stand-in/faults.ts";
import { SglangStandIn } from "../../../test/faults/stand-in/sglang-stand-in.ts";
import {
  EOS,
  standInCandidates,
  standInLogprob,
  standInResponse,
} from "../../../test/faults/stand-in/tokens.ts";
import { VllmStandIn } from "../../../test/faults/stand-in/vllm-stand-in.ts";
import { fold32 } from "../../core/base/hash.ts";
import { groupId, weightEpoch, workerId } from "../../core/base/ids.ts";
import { EmbeddedKvPool } from "../../core/kv/embedded-pool.ts";
import type { Request } from "../../core/request/buffer.ts";
import { drawKey, NO_SHAPING, type SamplingParams } from "../../core/request/request.ts";
import { Rollout } from "../../core/rollout/rollout.ts";
import { loadCore } from "../../core/wasm/load.ts";
import { wallTimers } from "./clock.ts";
import type { VllmLimits } from "./limits.ts";
import { openVllmWorker } from "./open.ts";
import { sglangSeed } from "./sglang/body.ts";
import type { VllmWorker } from "./worker.ts";

const core = loadCore();
const TOKENS_MAX = 120;
const SEEDS = 12;
const LANES = 4;
const SCENARIO_MS_MAX = 300_000;

const LIMITS: Partial<VllmLimits> = {
  stallMs: 10,
  // Above what a stream is silent for while other processes have the machine's cores.
  silenceMsMax: 600,
  retryMs: 1,
  retryMsMax: 4,
  pollMs: 10,
  failedAttemptsMax: 50,
  // A server that restarts is looked at often while it is down.
  healthFailuresMax: 50,
  checkMsMax: 5_000,
};

/** Numbers that belong to a seed. */
class Dice {
  readonly #seed: number;
  #rolls = 0;

  constructor(seed: number) {
    this.#seed = seed;
  }

  below(limit: number): number {
    this.#rolls += 1;
    return fold32(this.#seed, this.#rolls) % limit;
  }

  of<T>(values: readonly [T, ...T[]]): T {
    return values[this.below(values.length)] ?? values[0];
  }
}

type StandIn = VllmStandIn | SglangStandIn;

/** By the scenario's number: all servers of a run are of a kind. */
const kindOf = (seed: number) => (seed % 3 === 2 ? "sglang" : "vllm");

function samplingOf(dice: Dice, seed: number): SamplingParams {
  const tokensMin = dice.of([0, 0, 5, 40]);
  // SGLang bans its own EOS before `min_new_tokens`, whether it would end the response or not.
  const eos = kindOf(seed) === "sglang" && tokensMin > 0 ? [EOS] : [];
  return {
    temperature: dice.below(2),
    seed,
    tokensMax: 1 + dice.below(TOKENS_MAX),
    stopTokenIds: [...eos, ...Array.from({ length: dice.below(30) }, () => dice.below(1000))],
    shaping: {
      ...NO_SHAPING,
      tokensMin,
      // Counted in the engine: such a response must come in one piece.
      presencePenalty: dice.of([0, 0, 0, 0, 0.5]),
    },
    topLogprobs: dice.of([0, 0, 1, 2]),
    engineFields: null,
  };
}

interface Outcome {
  readonly finished: readonly Request[];
  readonly submitted: number;
  readonly failures: readonly string[];
  readonly killed: number;
  readonly restarted: number;
  readonly lost: number;
  readonly shown: ReadonlyMap<string, number>;
}

async function play(seed: number): Promise<Outcome> {
  const dice = new Dice(seed);
  const servers: StandIn[] = [];
  const workers: VllmWorker[] = [];
  const share = dice.of([0, 0.1, 0.3]);
  const count = 2 + dice.below(3);
  const killAt = dice.below(3) === 0 ? 20 + dice.below(60) : -1;
  const restarts = { left: killAt < 0 ? 1 : 0 };
  for (let i = 0; i < count; i += 1) {
    const options = { share, tokensMax: 40, kinds: FAULT_KINDS, restarts };
    const faults = seededFaults(fold32(seed, i), options);
    const server = await startStandIn(kindOf(seed), dice, faults);
    servers.push(server);
    workers.push(await openOn(server, i));
  }
  const finished: Request[] = [];
  const failures: string[] = [];
  const over = Promise.withResolvers<void>();
  let submitted = 0;
  let killed = 0;
  const rollout = new Rollout({
    policy: dice.of(["seer", "divided"]),
    draft: dice.of(["grouped", "off"]),
    chunkTokens: 1 + dice.below(64),
    epoch: weightEpoch(0),
    pool: new EmbeddedKvPool({ clock: wallTimers, memoryBytesMax: 0, disk: null }),
    clock: wallTimers,
    core,
    listener: {
      tokens() {},
      restarted() {},
      stats() {},
      groupFinished() {},
      finished(request) {
        finished.push(request);
        if (finished.length === killAt) {
          killed += 1;
          void servers[0]?.stop();
        }
        if (finished.length === submitted) over.resolve();
      },
      workerFailed: ({ workerId: id }, message) => {
        failures.push(message);
        const server = servers[id % count];
        if (server?.isStopped !== false) return;
        // As the sidecar's pool does, under a number of its own.
        void openOn(server, id + count).then((worker) => {
          workers.push(worker);
          rollout.addWorker(worker);
        }, over.reject);
      },
      quarantined: ({ response }) => over.reject(new Error(response.refusal?.message)),
      threw: (error) => over.reject(error),
      broken: (error) => over.reject(error),
    },
  });
  const groups = 20 + dice.below(20);
  for (let i = 0; i < groups; i += 1) {
    const prompt = Int32Array.from({ length: 1 + dice.below(50) }, () => dice.below(1000));
    const id = groupId(`g${i}`);
    const group = rollout.open(id, prompt);
    const size = 1 + dice.below(16);
    const sampling = samplingOf(dice, seed);
    const divisible = workers.every((worker) => worker.supports(sampling).kind === "divided");
    for (let k = 0; k < size; k += 1) {
      submitted += 1;
      rollout.join(group, { sampling, draw: drawKey(seed, id, k), divisible, priority: 0 });
    }
  }
  for (const worker of workers) rollout.addWorker(worker);
  const timer = setTimeout(
    () => over.reject(new Error(`no end: ${finished.length} of ${submitted} finished`)),
    SCENARIO_MS_MAX,
  );
  try {
    await over.promise;
  } finally {
    clearTimeout(timer);
    rollout.stop();
    await Promise.all(workers.map((worker) => worker.close()));
    await Promise.all(servers.map((server) => (server.isStopped ? null : server.stop())));
  }
  const shown = new Map<string, number>();
  let restarted = 0;
  for (const server of servers) {
    restarted += server.restarts;
    for (const [kind, times] of server.shown) shown.set(kind, (shown.get(kind) ?? 0) + times);
  }
  const { lost_tokens: lost } = rollout.meter.report({
    policy: "",
    draft: "",
    deterministic: false,
    epoch: weightEpoch(0),
    interrupted: false,
    pool: new EmbeddedKvPool({ clock: wallTimers, memoryBytesMax: 0, disk: null }).stats(),
  });
  return { finished, submitted, failures, killed, restarted, lost, shown };
}

async function startStandIn(
  kind: ReturnType<typeof kindOf>,
  dice: Dice,
  faults: FaultPlan,
): Promise<StandIn> {
  const common = {
    slots: 8 + dice.below(40),
    blockSize: dice.of([16, 4]),
    blocks: dice.of([2000, 200]),
    hasPriorities: dice.below(3) > 0,
    // The probe's own requests are the first to arrive.
    faults: (arrival: number, prompt: readonly number[]) =>
      arrival < 2 ? null : faults(arrival, prompt),
    silenceMs: 30,
    downMs: 5,
  };
  if (kind === "sglang") {
    const release = dice.of(["0.5.23", "old"] as const);
    const isIncremental = dice.below(2) === 0;
    return await SglangStandIn.start({ ...common, release, isIncremental });
  }
  return await VllmStandIn.start({
    ...common,
    generate: dice.of(["enabled", "enabled", "disabled"]),
    spelling: dice.of(["0.32", "0.22"]),
  });
}

/** A server that is down, or that shows a fault to the probe, is asked again. */
async function openOn(server: StandIn, id: number): Promise<VllmWorker> {
  for (let tries = 1; ; tries += 1) {
    try {
      return await openVllmWorker({ workerId: workerId(id), url: server.url, limits: LIMITS });
    } catch (error) {
      if (tries === 50) throw error;
    }
  }
}

function check(request: Request, seed: number): void {
  const { spec, response } = request;
  const { sampling } = spec;
  const drawn = sampling.temperature > 0 ? sglangSeed(spec.draw) : 0;
  const wanted = standInResponse({
    prompt: spec.prompt,
    sample: kindOf(seed) === "sglang" ? drawn : spec.sampleIndex,
    tokensMin: sampling.shaping?.tokensMin ?? 0,
    tokensMax: sampling.tokensMax,
    stopTokenIds: sampling.stopTokenIds,
  });
  expect([...response.tokens()]).toEqual(wanted);
  const last = wanted.at(-1) ?? -1;
  const stops =
    sampling.stopTokenIds.includes(last) && wanted.length > (sampling.shaping?.tokensMin ?? 0);
  expect(response.finish).toBe(stops ? "stop" : "length");
  expect([...response.logprobs()]).toEqual(wanted.map(standInLogprob).map(Math.fround));
  const top = response.topLogprobs();
  if (top !== null) {
    const rows = wanted.map((token) => standInCandidates(token).slice(0, sampling.topLogprobs));
    expect([...top.tokens]).toEqual(rows.flat().map((candidate) => candidate.token));
    expect([...top.logprobs]).toEqual(rows.flat().map(({ logprob }) => Math.fround(logprob)));
  }
  const inChunks = response.chunks.reduce((sum, chunk) => sum + chunk.tokens, 0);
  expect(inChunks).toBe(wanted.length);
}

async function playAndCheck(seed: number, seen: Map<string, number>): Promise<number> {
  try {
    const outcome = await play(seed);
    expect(outcome.finished.length).toBe(outcome.submitted);
    for (const request of outcome.finished) check(request, seed);
    expect(outcome.lost).toBe(0);
    expect(outcome.failures.length, outcome.failures.join("; ")).toBe(
      outcome.killed + outcome.restarted,
    );
    for (const [kind, times] of outcome.shown) seen.set(kind, (seen.get(kind) ?? 0) + times);
    return outcome.finished.length;
  } catch (error) {
    throw new Error(`repeat it with SEED=${seed} bun test src/engines/vllm/rollout.test.ts`, {
      cause: error,
    });
  }
}

const only = process.env.SEED;

test("rollout over vLLM: every token comes once, in order, whatever fails", async () => {
  const seeds = only === undefined ? Array.from({ length: SEEDS }, (_, i) => i) : [Number(only)];
  const seen = new Map<string, number>();
  let requests = 0;
  // Scenarios mostly wait for their own faults, so a few share the time.
  const lane = async () => {
    for (let seed = seeds.shift(); seed !== undefined; seed = seeds.shift()) {
      const finished = await playAndCheck(seed, seen);
      requests += finished;
    }
  };
  await Promise.all(Array.from({ length: LANES }, lane));
  if (only !== undefined) return;
  expect(requests).toBeGreaterThan(2000);
  expect([...seen.keys()].toSorted()).toEqual([...FAULT_KINDS].toSorted());
}, 600_000);
