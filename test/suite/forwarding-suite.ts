// What a worker must hold that passes a simulated one on: its events come through exactly. The rest of the contract is
// worker-suite.ts.

import { expect, test } from "bun:test";
import { requestId, type WeightEpoch, weightEpoch, workerId } from "../../src/core/base/ids.ts";
import type { RequestSpec, SamplingParams } from "../../src/core/request/request.ts";
import type { KvBlob, Worker, WorkerCommand, WorkerEvent } from "../../src/core/rollout/worker.ts";
import { SimulatedWorker, simulatedToken } from "../faults/simulated/worker.ts";
import { samplingOf, specOf } from "./request-spec.ts";

export const EPOCH_0 = weightEpoch(0);
const CAPACITY = { slots: 2, kvTokens: 400, contextTokens: 128, kvBytesPerToken: 8 };
const PROMPT = Int32Array.of(5, 6, 7);

/** A worker under test, and how to wait until all that was said so far, either way, has arrived. */
export interface Forwarding {
  readonly worker: Worker;
  settled(): Promise<void>;
  close(): Promise<void>;
}

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
  readonly harness: Forwarding;

  constructor(simulated: SimulatedWorker, harness: Forwarding) {
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

export function forwardingSuite(
  name: string,
  make: (simulated: SimulatedWorker) => Promise<Forwarding>,
): void {
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
