// What a pool does with workers whose connections are lost: it says so, places nothing new on them, and opens
// those whose sessions are over again, soon and for as long as it takes.

import { expect, spyOn, test } from "bun:test";
import { SimulatedWorker } from "../../test/faults/simulated/worker.ts";
import { newSimulated } from "../../test/suite/forwarding-suite.ts";
import { ManualClock } from "../../test/suite/manual-clock.ts";
import { weightEpoch, workerId } from "../core/base/ids.ts";
import { EmbeddedKvPool } from "../core/kv/embedded-pool.ts";
import { SAMPLING_DEFAULTS } from "../core/request/request.ts";
import type { OpenOptions } from "../core/rollout/worker.ts";
import { loadCore } from "../core/wasm/load.ts";
import { Sidecar } from "../server/sidecar.ts";
import { WorkerPool, type WorkerPoolOptions, type WorkerSource } from "./pool.ts";

const EPOCH = weightEpoch(0);
const TOKENS = 12;

class Bed {
  readonly sidecar: Sidecar;
  readonly sources: readonly WorkerSource[];
  readonly pool: WorkerPool;
  /** Of the worker that was opened last at each place. */
  readonly workers: SimulatedWorker[] = [];
  readonly reach: OpenOptions["reach"][] = [];
  readonly told: string[] = [];
  /** Bodies of the control requests to all workers. */
  readonly controlled: unknown[] = [];
  readonly laters: { readonly act: () => void; readonly ms: number }[] = [];
  isGone = false;

  private constructor(before: WorkerPoolOptions["before"]) {
    const { capacity } = newSimulated();
    this.sources = [0, 1].map((index) => ({
      name: `w${index}`,
      keepsWeights: true,
      open: async ({ reach }) => {
        if (this.isGone) throw new Error("refused");
        const options = { workerId: workerId(index), capacity, epoch: EPOCH };
        const worker = new SimulatedWorker({ ...options, lengthOf: () => TOKENS });
        spyOn(worker, "control").mockImplementation(async ({ body }) => {
          this.controlled.push(body);
          return { status: 200, body: null };
        });
        this.workers[index] = worker;
        this.reach[index] = reach;
        return worker;
      },
    }));
    this.pool = new WorkerPool({
      sources: this.sources,
      before: before ?? null,
      later: (act, ms) => {
        this.laters.push({ act, ms });
        return () => {};
      },
      controlMsMax: 1000,
      changed: ({ source, state, reason }) => this.told.push(`${source.name} ${state} ${reason}`),
    });
    const clock = new ManualClock();
    this.sidecar = new Sidecar({
      rollout: {
        policy: "seer",
        draft: "off",
        chunkTokens: 4,
        epoch: EPOCH,
        pool: new EmbeddedKvPool({ clock, memoryBytesMax: 1000, disk: null }),
        clock,
        core: loadCore(),
      },
      vocabularySize: 1000,
      limits: { requestsMax: 100, groupsMax: 10, keptBytesMax: 64000, keptResponsesMax: 100 },
      random: () => 7,
    });
  }

  static async open(before: WorkerPoolOptions["before"] = null): Promise<Bed> {
    const bed = new Bed(before);
    bed.pool.attach(bed.sidecar);
    await bed.pool.open();
    bed.told.length = 0;
    bed.laters.length = 0;
    return bed;
  }

  get states(): string[] {
    return this.pool.members.map(({ state }) => state);
  }

  ask(prompt: number) {
    const sampling = { temperature: 1, seed: 0, tokensMax: 50, stopTokenIds: [] };
    return this.sidecar.generate(
      {
        prompt: Int32Array.of(prompt, 2, 3),
        n: 1,
        sampling: { ...sampling, ...SAMPLING_DEFAULTS },
        seeded: false,
        group: null,
        priority: 0,
      },
      { tokens() {}, finished() {}, restarted() {} },
    ).requests;
  }

  async steps(indexes: readonly number[], count: number): Promise<void> {
    for (let i = 0; i < count; i += 1) {
      for (const index of indexes) this.workers[index]?.step();
      await new Promise<void>((resolve) => setImmediate(resolve));
    }
  }

  /** What was to happen later happens now. Returns the pauses. */
  async retry(): Promise<number[]> {
    const laters = this.laters.splice(0);
    for (const { act } of laters) act();
    await this.steps([], 3);
    return laters.map(({ ms }) => ms);
  }
}

test("pool: a worker with a lost connection gets nothing new, and continues when it is back", async () => {
  const bed = await Bed.open();
  const [before] = [...bed.ask(1), ...bed.ask(2)];
  await bed.steps([0, 1], 2);
  bed.reach[0]?.("the connection was lost");
  expect(bed.states).toEqual(["reconnecting", "ready"]);
  const after = [3, 4, 5].flatMap((prompt) => bed.ask(prompt));
  await bed.steps([1], 80);
  expect(after.map(({ response }) => response.finish)).toEqual(["stop", "stop", "stop"]);
  expect(before?.status).toBe("running");
  bed.reach[0]?.(null);
  await bed.steps([0, 1], 40);
  expect(before?.response.finish).toBe("stop");
  expect(bed.states).toEqual(["ready", "ready"]);
  expect(bed.told).toEqual(["w0 reconnecting the connection was lost", "w0 ready null"]);
});

test("pool: KV that is on a lost connection, or leaving over it, is computed again elsewhere", async () => {
  // Lost at every step of chunks that begin, run, end and leave their KV.
  for (let lostAt = 1; lostAt <= 16; lostAt += 1) {
    const bed = await Bed.open();
    // More requests than slots: at the end of each chunk its KV has to make way.
    const requests = [1, 2, 3, 4, 5, 6, 7, 8].flatMap((prompt) => bed.ask(prompt));
    await bed.steps([0, 1], lostAt);
    bed.reach[0]?.("the connection was lost");
    const held = requests.filter(
      ({ status, workerId: id }) => status === "running" && id === workerId(0),
    );
    await bed.steps([1], 120);
    const free = requests.filter((request) => !held.includes(request));
    expect(free.filter(({ status }) => status !== "finished")).toEqual([]);
    bed.reach[0]?.(null);
    await bed.steps([0, 1], 60);
    expect(requests.map(({ response }) => response.length)).toEqual(requests.map(() => TOKENS));
  }
});

test("pool: when the session is over its requests move, and the worker is reconnecting until it is opened", async () => {
  const bed = await Bed.open();
  const requests = [1, 2, 3, 4].flatMap((prompt) => bed.ask(prompt));
  await bed.steps([0, 1], 2);
  bed.isGone = true;
  bed.reach[0]?.("the connection was lost");
  bed.workers[0]?.kill();
  expect(bed.states).toEqual(["reconnecting", "ready"]);
  const pauses: number[] = [];
  for (let i = 0; i < 20; i += 1) pauses.push(...(await bed.retry()));
  expect(pauses[0]).toBeLessThanOrEqual(100);
  expect(Math.max(...pauses)).toBeLessThanOrEqual(2000);
  expect(bed.states[0]).toBe("reconnecting");
  // 20 tries that ended alike are not 20 lines.
  expect(bed.told.length).toBeLessThan(10);
  await bed.steps([1], 80);
  expect(requests.every(({ response }) => response.finish === "stop")).toBe(true);
  bed.isGone = false;
  await bed.retry();
  expect(bed.states).toEqual(["ready", "ready"]);
});

test("pool: a worker that was given up by its session does not affect the one after it", async () => {
  const bed = await Bed.open();
  const first = bed.reach[0];
  first?.("the connection was lost");
  bed.workers[0]?.kill();
  await bed.retry();
  expect(bed.states).toEqual(["ready", "ready"]);
  first?.("the connection was lost");
  expect(bed.states).toEqual(["ready", "ready"]);
});

test("pool: an engine that dies without a word is down until it is opened again", async () => {
  const bed = await Bed.open();
  bed.workers[1]?.kill();
  expect(bed.states).toEqual(["ready", "down"]);
  expect(await bed.retry()).toEqual([100]);
  expect(bed.states).toEqual(["ready", "ready"]);
});

test("pool: a worker that comes back before it was gone stays, and the last word counts", async () => {
  const bed = await Bed.open();
  const [first] = bed.sources;
  const requests = [1, 2, 3, 4].flatMap((prompt) => bed.ask(prompt));
  await bed.steps([0, 1], 2);
  void bed.pool.leave(workerId(0), 1000);
  expect(bed.states).toEqual(["leaving", "ready"]);
  if (first !== undefined) bed.pool.join(first);
  expect(bed.states).toEqual(["ready", "ready"]);
  await bed.retry();
  await bed.steps([0, 1], 80);
  expect(requests.every(({ response }) => response.finish === "stop")).toBe(true);
  // It leaves, comes back, leaves again, dies and comes back: two waits are under way, and neither removes it.
  bed.ask(5);
  bed.ask(6);
  await bed.steps([0, 1], 1);
  void bed.pool.leave(workerId(0), 1000);
  if (first !== undefined) bed.pool.join(first);
  void bed.pool.leave(workerId(0), 1000);
  bed.workers[0]?.kill();
  if (first !== undefined) bed.pool.join(first);
  await bed.retry();
  await bed.retry();
  expect(bed.states).toEqual(["ready", "ready"]);
  void bed.pool.leave(workerId(0), 1000);
  for (let i = 0; i < 3; i += 1) await bed.retry();
  expect(bed.states).toEqual(["ready"]);
});

test("engines that report no weights get those of the process before, which may not be theirs any more", async () => {
  const base = {
    ...{ method: "POST" as const, path: "/collective_rpc", query: {}, nextEpoch: EPOCH },
    body: { method: "reload_weights", kwargs: { weights_path: "/weights" } },
  };
  const bed = await Bed.open({ base, weights: null });
  expect(bed.states).toEqual(["ready", "ready"]);
  expect(bed.controlled.filter((body) => body === base.body).length).toBe(2);
});
