// What every worker must hold, told of a simulated one: an implementation that passes another worker on
// calls this from its own test file with its own way there.

import { expect, test } from "bun:test";
import {
  groupId,
  requestId,
  type WeightEpoch,
  weightEpoch,
  workerId,
} from "../../src/core/base/ids.ts";
import type { RequestSpec, SamplingParams } from "../../src/core/request/request.ts";
import type { KvBlob, Worker, WorkerCommand, WorkerEvent } from "../../src/core/rollout/worker.ts";
import { SimulatedWorker, simulatedToken } from "../faults/simulated/worker.ts";
import { samplingOf, specOf } from "./request-spec.ts";

export const EPOCH_0 = weightEpoch(0);
const CAPACITY = { slots: 2, kvTokens: 400, contextTokens: 128, kvBytesPerToken: 8 };
const PROMPT = Int32Array.of(5, 6, 7);

/** A worker under test, and the simulated one that does the work. */
export interface WorkerHarness {
  readonly worker: Worker;
  /** Resolves when all that was said so far, either way, has been heard. */
  settled(): Promise<void>;
  close(): Promise<void>;
}

export type MakeWorker = (simulated: SimulatedWorker) => Promise<WorkerHarness>;

export function newSimulated(id = 0, length = 20): SimulatedWorker {
  const options = { workerId: workerId(id), capacity: CAPACITY, epoch: EPOCH_0 };
  return new SimulatedWorker({ ...options, lengthOf: () => length });
}

export function newSpec(id: number, sampling: Partial<SamplingParams> = {}): RequestSpec {
  return specOf(id, {
    prompt: PROMPT,
    sampling: samplingOf({ seed: 7, tokensMax: 32, ...sampling }),
  });
}

export function runOf(
  request: RequestSpec,
  options: { from?: number; chunkTokens?: number; kv?: KvBlob | null } = {},
): WorkerCommand {
  const { from = 0, chunkTokens = 32, kv = null } = options;
  const output = tokensOf(request, 0, from);
  return { kind: "run", request, output, chunkTokens, priority: "low", kv, draft: null };
}

export function tokensOf(request: RequestSpec, from: number, to: number): Int32Array {
  return Int32Array.from({ length: to - from }, (_, i) =>
    simulatedToken(request.requestId, from + i),
  );
}

interface Heard {
  readonly epoch: WeightEpoch;
  readonly event: WorkerEvent;
}

class Bench {
  readonly heard: Heard[] = [];
  readonly simulated: SimulatedWorker;
  readonly harness: WorkerHarness;

  constructor(simulated: SimulatedWorker, harness: WorkerHarness) {
    this.simulated = simulated;
    this.harness = harness;
    harness.worker.listen((epoch, events) => {
      for (const event of events) this.heard.push({ epoch, event });
    });
  }

  async send(...commands: WorkerCommand[]): Promise<void> {
    this.harness.worker.send(commands);
    await this.harness.settled();
  }

  async steps(count: number): Promise<void> {
    for (let i = 0; i < count; i += 1) this.simulated.step();
    await this.harness.settled();
  }

  of<K extends WorkerEvent["kind"]>(kind: K): Extract<WorkerEvent, { kind: K }>[] {
    return this.heard.flatMap(({ event }) =>
      event.kind === kind ? [event as Extract<WorkerEvent, { kind: K }>] : [],
    );
  }

  /** All tokens of a request, in the order in which they came. */
  tokens(id: number): number[] {
    return this.of("tokens").flatMap((event) => (event.requestId === id ? [...event.tokens] : []));
  }
}

export function workerSuite(name: string, make: MakeWorker): void {
  const facts = (fact: string, check: (bench: Bench) => Promise<void>) =>
    test(`${name}: ${fact}`, async () => {
      const simulated = newSimulated();
      const harness = await make(simulated);
      try {
        await check(new Bench(simulated, harness));
      } finally {
        await harness.close();
      }
    });
  lifeTests(facts);
  kvTests(facts);
  endTests(facts);
  test(`${name}: a worker that failed before anybody listened says so to the listener`, async () => {
    const simulated = newSimulated();
    const harness = await make(simulated);
    simulated.kill();
    await harness.settled();
    const { heard } = new Bench(simulated, harness);
    await harness.settled();
    await Promise.resolve();
    expect(heard.map(({ event }) => event)).toEqual([{ kind: "failed", message: "killed" }]);
    await harness.close();
  });
}

type Facts = (fact: string, check: (bench: Bench) => Promise<void>) => void;

function lifeTests(facts: Facts): void {
  facts("a run streams its tokens by offset, and reports the end of the chunk", async (bench) => {
    const spec = newSpec(1);
    await bench.send(runOf(spec, { chunkTokens: 5 }));
    await bench.steps(8);
    expect(bench.tokens(1)).toEqual([...tokensOf(spec, 0, 5)]);
    expect(bench.of("tokens").map((event) => event.offset)).toEqual([0, 1, 2, 3, 4]);
    expect(bench.of("tokens").map((event) => event.logprobs[0])).toEqual([-0, -1, -2, -3, -4]);
    expect(bench.of("chunk_done")).toEqual([
      { kind: "chunk_done", requestId: spec.requestId, finish: null },
    ]);
  });

  facts("a request continues where it was, chunk by chunk, without prefill", async (bench) => {
    const spec = newSpec(1);
    for (const from of [0, 8, 16]) {
      await bench.send(runOf(spec, { from, chunkTokens: 8 }));
      await bench.steps(10);
    }
    expect(bench.tokens(1)).toEqual([...tokensOf(spec, 0, 20)]);
    expect(bench.of("chunk_done").map((event) => event.finish)).toEqual([null, null, "stop"]);
    expect(bench.of("stats").at(-1)?.stats).toMatchObject({
      outputTokens: 20,
      prefillTokens: 3,
      recomputedTokens: 0,
    });
  });

  facts("output made elsewhere is taken, and prefilled", async (bench) => {
    const spec = newSpec(3);
    await bench.send(runOf(spec, { from: 11 }));
    await bench.steps(12);
    expect(bench.tokens(3)).toEqual([...tokensOf(spec, 11, 20)]);
    expect(bench.of("stats").at(-1)?.stats.prefillTokens).toBe(14);
  });

  facts("requests of one step are reported in the order of the engine", async (bench) => {
    await bench.send(runOf(newSpec(1)), runOf(newSpec(2, { tokensMax: 3 })));
    await bench.steps(4);
    const order = bench.heard.flatMap(({ event }) =>
      event.kind === "tokens" || event.kind === "chunk_done"
        ? [`${event.kind} ${event.requestId}`]
        : [],
    );
    expect(order.slice(0, 7)).toEqual([
      "tokens 1",
      "tokens 2",
      "tokens 1",
      "tokens 2",
      "tokens 1",
      "tokens 2",
      "chunk_done 2",
    ]);
    expect(bench.of("chunk_done")[0]?.finish).toBe("length");
  });

  facts("a released request emits no more events, and can run again", async (bench) => {
    const spec = newSpec(1);
    await bench.send(runOf(spec));
    await bench.steps(3);
    await bench.send({ kind: "release", requestId: spec.requestId });
    await bench.steps(3);
    expect(bench.tokens(1)).toEqual([...tokensOf(spec, 0, 3)]);
    await bench.send(runOf(spec));
    await bench.steps(2);
    expect(bench.tokens(1)).toEqual([...tokensOf(spec, 0, 3), ...tokensOf(spec, 0, 2)]);
  });

  facts("drafts' updates are taken without an answer", async (bench) => {
    const id = groupId("g");
    const delta = {
      kind: "delta",
      groupId: id,
      sampleIndex: 1,
      offset: 0,
      tokens: PROMPT,
    } as const;
    await bench.send({ kind: "register_group", groupId: id, prompt: PROMPT, ttlMs: 1000 }, delta, {
      kind: "drop_group",
      groupId: id,
    });
    expect(bench.heard).toEqual([]);
  });
}

function kvTests(facts: Facts): void {
  facts("KV is handed out once, and taken again", async (bench) => {
    const spec = newSpec(1);
    await bench.send(runOf(spec, { chunkTokens: 4 }));
    await bench.steps(5);
    const { requestId: id } = spec;
    await bench.send({ kind: "export", requestId: id }, { kind: "export", requestId: id });
    await bench.steps(1);
    const [first, second] = bench.of("exported");
    expect(first?.kv).toEqual({ tokens: 7, bytes: new ArrayBuffer(8) });
    expect(second?.kv).toBeNull();
    await bench.send(runOf(spec, { from: 4, kv: first?.kv ?? null }));
    await bench.steps(20);
    expect(bench.tokens(1)).toEqual([...tokensOf(spec, 0, 20)]);
    expect(bench.of("stats").at(-1)?.stats).toMatchObject({ kvLoads: 1, recomputedTokens: 0 });
  });

  facts("evicted and preempted requests are reported", async (bench) => {
    await bench.send(runOf(newSpec(1), { chunkTokens: 4 }));
    await bench.steps(5);
    bench.simulated.evictOne();
    await bench.steps(1);
    expect(bench.of("evicted").map((event) => event.requestId)).toEqual([requestId(1)]);
  });
}

function endTests(facts: Facts): void {
  facts("after an advance events carry the new epoch, and nothing old runs", async (bench) => {
    await bench.send(runOf(newSpec(1)));
    await bench.steps(2);
    const epoch = weightEpoch(3);
    await bench.send({ kind: "advance", epoch });
    await bench.steps(1);
    expect(bench.heard.filter((one) => one.epoch === epoch)[0]?.event).toEqual({
      kind: "advanced",
      epoch,
    });
    await bench.send(runOf(newSpec(1), { from: 2 }));
    await bench.steps(20);
    expect(bench.tokens(1)).toEqual([...tokensOf(newSpec(1), 0, 20)]);
    expect(bench.heard.at(-1)?.epoch).toBe(epoch);
  });

  facts("a control request is answered", async (bench) => {
    const request = {
      method: "POST",
      path: "/no_such_route",
      query: { mode: "keep" },
      body: { a: [1, null] },
      nextEpoch: weightEpoch(1),
    } as const;
    const direct: Worker = bench.simulated;
    const answer = await bench.harness.worker.control(request);
    expect(answer).toEqual(await direct.control(request));
    expect(answer.status).toBe(404);
  });

  facts("a worker that fails reports that once, as its last event", async (bench) => {
    await bench.send(runOf(newSpec(1)));
    await bench.steps(2);
    bench.simulated.kill();
    await bench.steps(1);
    await bench.send(runOf(newSpec(2)));
    expect(bench.of("failed")).toEqual([{ kind: "failed", message: "killed" }]);
    expect(bench.heard.at(-1)?.event.kind).toBe("failed");
  });

  facts("reports its capacity", async ({ harness: { worker } }) => {
    expect(worker.capacity).toEqual(CAPACITY);
    expect(worker.supports(newSpec(1).sampling)).toEqual({ kind: "divided" });
    expect(worker.name).not.toBe("");
  });

  facts("closed, it ignores commands, and can be closed again", async (bench) => {
    const { worker } = bench.harness;
    await worker.close();
    await worker.close();
    worker.send([runOf(newSpec(1))]);
    bench.simulated.step();
    expect(bench.heard).toEqual([]);
  });
}
