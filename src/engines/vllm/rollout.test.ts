// The rollout over workers on stand-ins for vLLM or SGLang that show every fault there is, thousands of requests by seed: each
// response comes out whole, once, in order. A failing seed says how to repeat it: SEED=n bun test <this file>.

import { expect, test } from "bun:test";
import { Dice } from "../../../test/faults/attacks/settings.ts";
import { FAULT_KINDS, type FaultPlan, seededFaults } from "../../../test/faults/stand-in/faults.ts";
import { SglangStandIn } from "../../../test/faults/stand-in/sglang-stand-in.ts";
import {
  EOS,
  standInCandidates,
  standInLogprob,
  standInResponse,
} from "../../../test/faults/stand-in/tokens.ts";
import { VllmStandIn } from "../../../test/faults/stand-in/vllm-stand-in.ts";
import { samplingOf } from "../../../test/suite/request-spec.ts";
import { world } from "../../../test/suite/rollout-bed.ts";
import { fold32 } from "../../core/base/hash.ts";
import { groupId, workerId } from "../../core/base/ids.ts";
import type { RolloutRequest } from "../../core/request/buffer.ts";
import { drawKey, NO_SHAPING, type SamplingParams } from "../../core/request/request.ts";
import type { VllmLimits } from "./limits.ts";
import { openVllmWorker } from "./open.ts";
import { sglangSeed } from "./sglang/body.ts";
import type { VllmWorker } from "./worker.ts";

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

type StandIn = VllmStandIn | SglangStandIn;

/** By the scenario's number: all servers of a run are of a kind. */
const kindOf = (seed: number) => (seed % 3 === 2 ? "sglang" : "vllm");

function samplingIn(dice: Dice, seed: number): SamplingParams {
  const tokensMin = dice.one([0, 0, 5, 40]);
  // SGLang bans its own EOS before `min_new_tokens`, whether it would end the response or not.
  const eos = kindOf(seed) === "sglang" && tokensMin > 0 ? [EOS] : [];
  return samplingOf({
    temperature: dice.below(2),
    seed,
    tokensMax: 1 + dice.below(TOKENS_MAX),
    stopTokenIds: [...eos, ...Array.from({ length: dice.below(30) }, () => dice.below(1000))],
    shaping: {
      ...NO_SHAPING,
      tokensMin,
      // Counted in the engine: such a response must come in one piece.
      presencePenalty: dice.one([0, 0, 0, 0, 0.5]),
    },
    topLogprobs: dice.one([0, 0, 1, 2]),
  });
}

async function play(seed: number) {
  const dice = new Dice(seed);
  const servers: StandIn[] = [];
  const workers: VllmWorker[] = [];
  const share = dice.one([0, 0.1, 0.3]);
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
  const finished: RolloutRequest[] = [];
  const failures: string[] = [];
  const over = Promise.withResolvers<void>();
  const requests: RolloutRequest[] = [];
  let killed = 0;
  const { rollout } = world({
    policy: dice.one(["seer", "divided"]),
    draft: dice.one(["grouped", "off"]),
    chunkTokens: 1 + dice.below(64),
    listener: {
      finished(request) {
        finished.push(request);
        if (finished.length === killAt) {
          killed += 1;
          void servers[0]?.stop();
        }
        if (finished.length === requests.length) over.resolve();
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
      threw: over.reject,
      broken: over.reject,
    },
  });
  const groups = 20 + dice.below(20);
  for (let i = 0; i < groups; i += 1) {
    const prompt = Int32Array.from({ length: 1 + dice.below(50) }, () => dice.below(1000));
    const id = groupId(`g${i}`);
    const group = rollout.open(id, prompt);
    const size = 1 + dice.below(16);
    const sampling = samplingIn(dice, seed);
    const divisible = workers.every((worker) => worker.supports(sampling).kind === "divided");
    for (let k = 0; k < size; k += 1) {
      const draw = drawKey(seed, id, k);
      requests.push(rollout.join(group, { sampling, draw, divisible, priority: 0 }));
    }
  }
  for (const worker of workers) rollout.addWorker(worker);
  const timer = setTimeout(
    () => over.reject(new Error(`no end: ${finished.length} of ${requests.length} finished`)),
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
  const restarted = servers.reduce((sum, server) => sum + server.restarts, 0);
  const shown = servers.flatMap((server) => [...server.shown.keys()]);
  const lost = rollout.meter.counts.lost_tokens;
  return { requests, finished, failures, ended: killed + restarted, lost, shown };
}

async function startStandIn(
  kind: ReturnType<typeof kindOf>,
  dice: Dice,
  faults: FaultPlan,
): Promise<StandIn> {
  const common = {
    slots: 8 + dice.below(40),
    blockSize: dice.one([16, 4]),
    blocks: dice.one([2000, 200]),
    hasPriorities: dice.below(3) > 0,
    // The probe's own requests are the first to arrive.
    faults: (arrival: number, prompt: readonly number[]) =>
      arrival < 2 ? null : faults(arrival, prompt),
    silenceMs: 30,
    downMs: 5,
  };
  if (kind === "sglang") {
    const hasStreamIntervals = dice.one([true, false]);
    const isIncremental = dice.below(2) === 0;
    return await SglangStandIn.start({ ...common, hasStreamIntervals, isIncremental });
  }
  return await VllmStandIn.start({
    ...common,
    generate: dice.one(["enabled", "enabled", "disabled"]),
    spelling: dice.one(["0.32", "0.22"]),
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

function check(request: RolloutRequest, seed: number): void {
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

async function playAndCheck(seed: number, seen: Set<string>): Promise<number> {
  try {
    const { requests, finished, failures, ended, lost, shown } = await play(seed);
    expect(finished.length).toBe(requests.length);
    for (const request of requests) check(request, seed);
    expect(lost).toBe(0);
    expect(failures.length, failures.join("; ")).toBe(ended);
    for (const kind of shown) seen.add(kind);
    return requests.length;
  } catch (error) {
    throw new Error(`repeat it with SEED=${seed} bun test src/engines/vllm/rollout.test.ts`, {
      cause: error,
    });
  }
}

const only = process.env.SEED;

test("rollout over vLLM: every token comes once, in order, whatever fails", async () => {
  const seeds = only === undefined ? Array.from({ length: SEEDS }, (_, i) => i) : [Number(only)];
  const seen = new Set<string>();
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
  expect([...seen].toSorted()).toEqual([...FAULT_KINDS].toSorted());
}, 600_000);
