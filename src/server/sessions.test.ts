// Sessions on simulated workers: which group a turn joins, where its KV is, what is kept, and when it goes.

import { heapStats } from "bun:jsc";
import { expect, test } from "bun:test";
import fc from "fast-check";
import { simulatedToken } from "../../test/faults/simulated/worker.ts";
import { Bed, DEAF, specFor } from "../../test/suite/sidecar-bed.ts";
import { type WorkerId, weightEpoch } from "../core/base/ids.ts";
import type { Group, RolloutRequest } from "../core/request/buffer.ts";
import type { GenerationSpec } from "./sidecar.ts";

const ROOT = Array.from({ length: 60 }, (_, i) => i + 1);
const NEWS = [900, 901, 902];

function turn(bed: Bed, session: string, prompt: readonly number[], more = {}): RolloutRequest {
  const spec: GenerationSpec = { ...specFor(prompt, 1), session, ...more };
  const [request] = bed.sidecar.generate(spec, DEAF).requests;
  if (request === undefined) throw new Error("one request");
  return request;
}

const textOf = ({ spec, response }: RolloutRequest): number[] => [
  ...spec.prompt,
  ...response.tokens(),
];
const prefilled = ({ workers }: Bed): number =>
  workers.reduce((sum, worker) => sum + worker.stats().prefillTokens, 0);
const kvUsed = ({ workers }: Bed): number =>
  workers.reduce((sum, worker) => sum + (worker.isDead ? 0 : worker.kvTokensUsed), 0);

test("a later turn joins its session's group, goes where its KV is, and computes what is new", async () => {
  const bed = new Bed({ workers: 3, lengthOf: () => 20 });
  const firsts = ["a", "b", "c"].map((session) => turn(bed, session, ROOT));
  await bed.finish();
  const before = prefilled(bed);
  const seconds = firsts.map((first, i) =>
    turn(bed, ["a", "b", "c"][i] ?? "", [...textOf(first), ...NEWS]),
  );
  await bed.finish();
  const groups = [...firsts, ...seconds].map(({ group }) => group);
  expect(new Set(groups).size).toBe(1);
  expect(seconds.map(({ workerId }) => workerId)).toEqual(firsts.map(({ workerId }) => workerId));
  expect(prefilled(bed) - before).toBe(3 * NEWS.length);
  expect([...(seconds[0]?.response.column.view(0, 4) ?? [])].slice(0, 3)).toEqual(NEWS);
  expect(seconds[0]?.response.length).toBe(20);
  expect(bed.sidecar.sessions.figures).toMatchObject({ turns: 3, promptTokens: 3 * 83 });
});

test("without a name, a prompt that goes on from a finished text is its session's next turn, and KV is kept from then on", async () => {
  const bed = new Bed({ workers: 3, lengthOf: () => 20 });
  const ask = (prompt: readonly number[], n = 1) => bed.generate(prompt, n) as RolloutRequest[];
  const firsts = ask(ROOT, 3);
  await bed.finish();
  expect(kvUsed(bed)).toBe(0);
  const seconds = firsts.map((first) => ask([...textOf(first), ...NEWS])[0] as RolloutRequest);
  await bed.finish();
  for (const [i, second] of seconds.entries()) {
    expect(second.group).toBe(firsts[0]?.group as Group);
    expect(second.workerId).toBe(firsts[i]?.workerId as WorkerId);
  }
  const before = prefilled(bed);
  const third = ask([...textOf(seconds[1] as RolloutRequest), ...NEWS])[0] as RolloutRequest;
  await bed.finish();
  expect(third.workerId).toBe(seconds[1]?.workerId as WorkerId);
  expect(prefilled(bed) - before).toBe(NEWS.length);
  // An edited turn has what it asked for.
  const [edited] = ask([...textOf(third).slice(0, -4), 9, 9]);
  await bed.finish();
  expect(edited?.spec.prompt.at(-1)).toBe(9);
  expect(bed.sidecar.sessions.figures).toMatchObject({ turns: 5, edited: 1 });
});

test("a turn whose prompt was edited goes on from what it shares; a new conversation shares nothing", async () => {
  const bed = new Bed({ workers: 1, lengthOf: () => 20 });
  const first = turn(bed, "a", ROOT);
  await bed.finish();
  // The client has cut the response's second half.
  const edited = [...ROOT, ...first.response.tokens().subarray(0, 10), ...NEWS];
  const before = prefilled(bed);
  const second = turn(bed, "a", edited);
  await bed.finish();
  expect(second.group).toBe(first.group);
  expect(prefilled(bed) - before).toBe(NEWS.length);
  const other = turn(bed, "a", [7, 7, 7]);
  await bed.finish();
  expect(other.group).not.toBe(first.group);
  expect(kvUsed(bed)).toBe(3 + 20);
});

test("what is kept goes with time, with the end of the session, with its group, and with the weights", async () => {
  const limits = { sessionMsMax: 1_000, groupsMax: 2 };
  const bed = new Bed({ workers: 1, lengthOf: () => 20, limits });
  const kept = () => [bed.sidecar.sessions.count, kvUsed(bed)];
  turn(bed, "a", ROOT);
  await bed.finish();
  expect(kept()).toEqual([1, 80]);
  bed.clock.advance(2_000);
  turn(bed, "b", [5]);
  await bed.finish();
  await bed.step();
  expect(kept()).toEqual([1, 21]);
  expect(bed.sidecar.sessions.end("b")).toBe(1);
  await bed.step();
  expect(kept()).toEqual([0, 0]);
  turn(bed, "c", ROOT);
  await bed.finish();
  for (const first of [11, 12]) bed.generate([first], 1);
  await bed.finish();
  await bed.step();
  expect(kept()).toEqual([2, 0]);
  const last = turn(bed, "d", ROOT);
  await bed.finish();
  bed.sidecar.advance(weightEpoch(1));
  const next = turn(bed, "d", [...textOf(last), ...NEWS]);
  expect(next.group).not.toBe(last.group);
  await bed.finish();
  expect(kept()).toEqual([1, 103]);
});

test("the last turns of sessions stay below the bound of open groups", async () => {
  const bed = new Bed({ workers: 1, lengthOf: () => 5, limits: { keptBytesMax: 100_000 } });
  for (let i = 0; i < 60; i += 1) {
    turn(bed, `s${i}`, [...ROOT, i]);
    await bed.finish();
    expect(bed.sidecar.kept.bytes).toBeLessThanOrEqual(100_000);
  }
  expect(bed.sidecar.sessions.count).toBeGreaterThan(10);
  expect(bed.sidecar.sessions.count).toBeLessThan(60);
});

test("an abandoned turn keeps nothing", async () => {
  const bed = new Bed({ workers: 1, lengthOf: () => 5 });
  const generation = bed.sidecar.generate({ ...specFor([1, 2, 3], 1), session: "gone" }, DEAF);
  await bed.step();
  generation.abort();
  await bed.finish();
  await bed.step();
  expect(kvUsed(bed)).toBe(0);
});

test("nothing of a session without a name is kept once its group is closed", async () => {
  const bed = new Bed({ workers: 1, lengthOf: () => 40, limits: { groupsMax: 4 } });
  const arrays = (): number => {
    Bun.gc(true);
    return heapStats().objectTypeCounts.Int32Array ?? 0;
  };
  const before = arrays();
  for (let i = 0; i < 80; i += 1) {
    bed.generate([500, i + 1], 1);
    await bed.finish();
  }
  expect(arrays() - before).toBeLessThan(80);
  expect(bed.sidecar.sessions.count).toBeLessThan(5);
});

test("KV of ended turns makes way for requests that wait, and comes back from the pool", async () => {
  // 4,000 KV tokens; each session keeps 120.
  const bed = new Bed({ workers: 1, lengthOf: () => 60, slots: 16 });
  const names = Array.from({ length: 30 }, (_, i) => `s${i}`);
  const firsts = names.map((name) => turn(bed, name, ROOT));
  await bed.finish();
  expect(kvUsed(bed)).toBe(30 * 120);
  const wave = Array.from({ length: 40 }, (_, i) => [...ROOT, ...ROOT, i]);
  for (const prompt of wave) bed.generate(prompt, 1);
  await bed.finish();
  const { workers } = bed;
  expect(workers[0]?.stats().preemptions).toBe(0);
  const before = prefilled(bed);
  const seconds = firsts.map((first, i) => turn(bed, names[i] ?? "", [...textOf(first), ...NEWS]));
  await bed.finish();
  expect(seconds.every(({ response }) => response.length === 60)).toBe(true);
  // All of it was in the pool or on the worker still.
  expect(prefilled(bed) - before).toBe(30 * NEWS.length);
  expect(workers[0]?.stats().kvLoads).toBeGreaterThan(20);
});

test("sessions: whatever happens, every token comes once and all KV is given back at the end", async () => {
  const action = fc.oneof(
    {
      weight: 8,
      arbitrary: fc.record({ kind: fc.constant("turn"), session: fc.nat(5), cut: fc.nat(40) }),
    },
    {
      weight: 8,
      arbitrary: fc.record({ kind: fc.constant("steps"), count: fc.integer({ min: 1, max: 30 }) }),
    },
    { weight: 1, arbitrary: fc.record({ kind: fc.constant("abort"), index: fc.nat(30) }) },
    { weight: 1, arbitrary: fc.record({ kind: fc.constant("stop"), index: fc.nat(30) }) },
    { weight: 1, arbitrary: fc.record({ kind: fc.constant("kill") }) },
    { weight: 1, arbitrary: fc.record({ kind: fc.constant("end"), session: fc.nat(5) }) },
    { weight: 1, arbitrary: fc.record({ kind: fc.constant("evict") }) },
    { weight: 1, arbitrary: fc.record({ kind: fc.constant("advance") }) },
    { weight: 1, arbitrary: fc.record({ kind: fc.constant("time"), ms: fc.nat(3_000) }) },
  );
  await fc.assert(
    fc.asyncProperty(
      fc.array(action as fc.Arbitrary<Record<string, number | string>>, { maxLength: 60 }),
      async (actions) => {
        const failures: unknown[] = [];
        const bed = new Bed({
          workers: 2,
          lengthOf: ({ requestId }) => 5 + (requestId % 40),
          limits: { sessionMsMax: 2_000, groupsMax: 3 },
          failed: (error) => failures.push(error),
        });
        bed.sidecar.observe({ broken: (error) => failures.push(error) });
        const all: RolloutRequest[] = [];
        const texts = new Map<number, number[]>();
        const last = new Map<number, RolloutRequest>();
        const { rollout } = bed.sidecar;
        for (const { kind, session = 0, cut = 0, count = 0, index = 0, ms = 0 } of actions) {
          const name = Number(session);
          if (kind === "turn") {
            const before = last.get(name);
            if (before?.status === "finished") {
              const text = textOf(before);
              const shorter = Number(cut) < 10 ? text.slice(0, text.length - Number(cut)) : text;
              texts.set(name, [...shorter, ...NEWS].slice(-400));
            }
            const prompt = texts.get(name) ?? [...ROOT, name % 2];
            const request = turn(bed, `s${name}`, prompt);
            all.push(request);
            last.set(name, request);
          } else if (kind === "steps") for (let i = 0; i < Number(count); i += 1) await bed.step();
          else if (kind === "abort" || kind === "stop") {
            const request = all[Number(index)];
            if (request !== undefined) rollout.end(request, kind);
          } else if (kind === "kill" && bed.workers.length < 6) {
            bed.workers.find(({ isDead }) => !isDead)?.kill();
            bed.addWorker();
          } else if (kind === "evict") for (const worker of bed.workers) worker.evictOne();
          else if (kind === "advance") bed.sidecar.advance(weightEpoch(rollout.epoch + 1));
          else if (kind === "end") bed.sidecar.sessions.end(`s${name}`);
          else bed.clock.advance(Number(ms));
        }
        await bed.finish();
        expect(failures).toEqual([]);
        for (const { spec, response } of all) {
          expect([...response.tokens()]).toEqual(
            Array.from({ length: response.length }, (_, i) => simulatedToken(spec.requestId, i)),
          );
          if (response.finish === "stop") continue;
          expect(response.finish).toBe("abort");
        }
        for (let i = 0; i < 6; i += 1) bed.sidecar.sessions.end(`s${i}`);
        await bed.sidecar.drain();
        for (let i = 0; i < 3; i += 1) await bed.step();
        expect(kvUsed(bed)).toBe(0);
        expect(rollout.isQuiet).toBe(true);
        expect(bed.sidecar.sessions.count).toBe(0);
      },
    ),
    { numRuns: 150 },
  );
}, 180_000);
