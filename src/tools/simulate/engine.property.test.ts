// The engine that moves from change to change against one that goes step by step.

import { expect, test } from "bun:test";
import fc from "fast-check";
import { runStepByStep } from "../../../test/reference/step-by-step.ts";
import { runCommand, samplingOf, specOf } from "../../../test/suite/request-spec.ts";
import { workerId } from "../../core/base/ids.ts";
import { type EngineTimes, SimulatedEngine } from "./engine.ts";

/** As on a GPU: most of a step does not depend on the batch, and contexts count. */
const times: EngineTimes = {
  kvBytesPerToken: 1,
  stepMs: (_, rows, contextTokens) => 12 + 0.05 * rows + 2e-5 * contextTokens,
  prefillMs: (tokens, before) => 5 + 0.01 * tokens + 1e-6 * tokens * (before + tokens / 2),
  transferMs: (tokens) => 0.5 + 1e-4 * tokens,
};

const requestArbitrary = fc.record({
  promptTokens: fc.integer({ min: 1, max: 300 }),
  tokens: fc.integer({ min: 1, max: 400 }),
});

/** An engine at the time of `clock` whose requests have the lengths. */
function engineOf(
  clock: { nowMs: number },
  options: { kvTokens: number; slots: number; reportTokens: number },
  lengthOf: (id: number) => number,
): SimulatedEngine {
  return new SimulatedEngine({
    ...options,
    workerId: workerId(0),
    times,
    contextTokens: options.kvTokens,
    sharesKv: true,
    speculation: null,
    world: {
      nowMs: () => clock.nowMs,
      lengthOf,
      qualityOf: () => 0,
      admitted() {},
      stored() {},
      loading: () => 0,
    },
    isPaced: true,
  });
}

interface Played {
  readonly endMs: number[];
  readonly made: number[];
  readonly engine: SimulatedEngine;
  readonly kvMost: number;
}

/** Submits all at once; `kicksMs`: times of looks in between. `until`: of whole requests, preemptions to stop at. */
function play(
  requests: readonly { promptTokens: number; tokens: number }[],
  options: { kvTokens: number; slots: number; kicksMs: readonly number[]; until?: number },
): Played {
  const endMs: number[] = [];
  const clock = { nowMs: 0 };
  const { kvTokens, slots, until } = options;
  const reportTokens = until === undefined ? 64 : Infinity;
  const engine = engineOf(
    clock,
    { kvTokens, slots, reportTokens },
    (id) => requests[id]?.tokens ?? 0,
  );
  const made = requests.map(() => 0);
  engine.listen((_epoch, events) => {
    for (const event of events) {
      if (event.kind === "chunk_done") endMs[event.requestId] = clock.nowMs;
      if (event.kind !== "tokens") continue;
      expect(event.offset).toBe(made[event.requestId] ?? 0);
      made[event.requestId] = event.offset + event.tokens.length;
    }
  });
  engine.send(
    requests.map(({ promptTokens, tokens: chunkTokens }, i) => {
      const prompt = new Int32Array(promptTokens);
      const spec = specOf(i, { prompt, sampling: samplingOf({ tokensMax: 1000 }) });
      return runCommand(spec, { chunkTokens });
    }),
  );
  engine.turn();
  let kvMost = engine.kvUsed;
  const kicks = options.kicksMs.toSorted((a, b) => a - b);
  while (Number.isFinite(engine.nextMs)) {
    const kick = kicks.shift() ?? Infinity;
    const isKick = kick > clock.nowMs && kick < engine.nextMs;
    clock.nowMs = isKick ? kick : engine.nextMs;
    if (isKick) engine.send([]);
    engine.turn();
    kvMost = Math.max(kvMost, engine.kvUsed);
    if (engine.counters.preemptions === until) return { endMs, made, engine, kvMost };
  }
  expect(made).toEqual(requests.map(({ tokens }) => tokens));
  return { endMs, made, engine, kvMost };
}

test("engine: with room for all, every request ends when the step-by-step twin ends it", () => {
  fc.assert(
    fc.property(
      fc.array(requestArbitrary, { minLength: 1, maxLength: 12 }),
      fc.integer({ min: 1, max: 12 }),
      fc.array(fc.integer({ min: 1, max: 20_000 }), { maxLength: 5 }),
      (requests, slots, kicksMs) => {
        const kvTokens = 1_000_000;
        const twin = runStepByStep(times, { kvTokens, slots, requests });
        const { endMs } = play(requests, { kvTokens, slots, kicksMs });
        for (const [i, ms] of twin.endMs.entries()) {
          expect(Math.abs((endMs[i] ?? 0) - ms)).toBeLessThan(0.005 * ms + 1);
        }
      },
    ),
  );
});

test("engine: short of KV, it preempts as the twin does, loses no token and keeps its budget", () => {
  fc.assert(
    fc.property(
      fc.array(requestArbitrary, { minLength: 2, maxLength: 10 }),
      fc.integer({ min: 701, max: 1500 }),
      (requests, kvTokens) => {
        const twin = runStepByStep(times, { kvTokens, slots: 8, requests });
        const { endMs, engine, kvMost } = play(requests, { kvTokens, slots: 8, kicksMs: [] });
        expect(kvMost).toBeLessThanOrEqual(kvTokens + 1e-3);
        expect(endMs.filter((ms) => ms > 0).length).toBe(requests.length);
        const wanted = requests.reduce((sum, { tokens }) => sum + tokens, 0);
        const { outputTokens, preemptions } = engine.counters;
        expect(Math.abs(outputTokens - wanted)).toBeLessThan(1 + preemptions);
        expect(preemptions > 0).toBe(twin.preemptions > 0);
        const last = Math.max(...twin.endMs);
        expect(Math.abs(Math.max(...endMs) - last)).toBeLessThan(0.05 * last + 50);
      },
    ),
  );
});

test("engine: KV that is parked goes before a request is preempted, the oldest first", () => {
  const clock = { nowMs: 0 };
  const engine = engineOf(clock, { kvTokens: 401, slots: 4, reportTokens: 64 }, () => 300);
  const told: string[] = [];
  engine.listen((_epoch, events) => {
    for (const { kind, ...event } of events) {
      if (kind === "chunk_done" || kind === "evicted") {
        told.push(`${kind} ${"requestId" in event ? event.requestId : ""}`);
      }
    }
  });
  const run = (id: number, chunkTokens: number) => {
    const sampling = samplingOf({ tokensMax: 300 });
    return runCommand(specOf(id, { prompt: new Int32Array(90), sampling }), { chunkTokens });
  };
  engine.send([run(0, 10), run(1, 20), run(2, 300)]);
  engine.turn();
  while (Number.isFinite(engine.nextMs)) {
    clock.nowMs = engine.nextMs;
    engine.turn();
  }
  expect(told).toEqual(["chunk_done 0", "chunk_done 1", "evicted 0", "evicted 1", "chunk_done 2"]);
  expect(engine.counters.preemptions).toBe(0);
});

test("engine: tokens of whole requests that a preemption does not report are handed over in the end", () => {
  const requests = [1, 2, 3].map(() => ({ promptTokens: 100, tokens: 400 }));
  const { made, engine } = play(requests, { kvTokens: 700, slots: 8, kicksMs: [], until: 2 });
  expect(made[0]).toBe(133);
  engine.flush();
  expect(made[0]).toBe(250);
});
