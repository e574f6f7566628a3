// What every worker must hold, whatever engine makes its tokens. Each kind of engine calls it from its own test file.
// `engines/llama/contract.test.ts` is the smallest such file; for a server: `examples/engine/worker.test.ts`.
// The double of a server that seeds a generator for each call draws by position here: the suite checks offsets and ends.

import { expect, test } from "bun:test";
import { present } from "../../src/core/base/assert.ts";
import { requestId, type WeightEpoch, weightEpoch } from "../../src/core/base/ids.ts";
import type { RequestSpec } from "../../src/core/request/request.ts";
import type { EngineOperation } from "../../src/core/rollout/operation.ts";
import type { EngineWorker, KvBlob, WorkerEvent } from "../../src/core/rollout/worker.ts";
import { type RunCommand, runCommand, samplingOf, specOf } from "./request-spec.ts";

/** A worker under test, of epoch 0, with two slots or more. */
export interface WorkerHarness {
  readonly worker: EngineWorker;
  /** Path of weights that the engine can load. Default: any but ABSENT. */
  readonly weights?: string;
  /** Operations that the engine does not know: they are a 404. Default: none. */
  readonly lacks?: readonly EngineOperation["kind"][];
  /** Makes the engine take a step; absent: it takes steps by itself. */
  readonly step?: () => void;
  /** Ends the engine, and returns once the worker has noticed; absent: nothing but the machine's end does. */
  readonly fail?: () => void | Promise<void>;
  close(): Promise<void>;
}

/** Path of no weights. */
export const ABSENT = "/absent";
const TOKENS = 24;
const PROMPT = Int32Array.of(5, 6, 7);
const WAIT_MS = 60_000;
const KV_MARGIN = PROMPT.length + TOKENS;

const specOfId = (id: number): RequestSpec =>
  specOf(id, { prompt: PROMPT, sampling: samplingOf({ seed: 7, tokensMax: TOKENS }) });
/** The whole of the first request. */
const LONG = runCommand(specOfId(1), { chunkTokens: TOKENS });

export interface Heard {
  readonly epoch: WeightEpoch;
  readonly event: WorkerEvent;
}

/** Listens to a worker. */
export class Bench {
  readonly heard: Heard[] = [];
  readonly worker: EngineWorker;
  readonly #harness: WorkerHarness;
  /** Output of each request, as its response has it. */
  readonly #output = new Map<number, readonly number[]>();

  constructor(harness: WorkerHarness) {
    this.#harness = harness;
    this.worker = harness.worker;
    this.worker.listen(
      (epoch, events) => {
        for (const event of events) this.heard.push({ epoch, event: this.#kept(event) });
      },
      (id) => Int32Array.from(this.#output.get(id) ?? []),
    );
  }

  send(command: RunCommand): void {
    this.#output.set(command.request.requestId, [...command.output]);
    this.worker.send([command]);
  }

  /** The event with copies of its columns, which are valid during the call only. */
  #kept(event: WorkerEvent): WorkerEvent {
    if (event.kind !== "tokens") return event;
    const { requestId, tokens, logprobs, top } = event;
    this.#output.set(requestId, [...(this.#output.get(requestId) ?? []), ...tokens]);
    const copied = top && {
      count: top.count,
      tokens: top.tokens.slice(),
      logprobs: top.logprobs.slice(),
    };
    return { ...event, tokens: tokens.slice(), logprobs: logprobs.slice(), top: copied };
  }

  async until(isTrue: () => boolean, what = ""): Promise<void> {
    const endMs = performance.now() + WAIT_MS;
    while (!isTrue()) {
      if (performance.now() > endMs) throw new Error(`waited in vain: ${what}`);
      this.#harness.step?.();
      await new Promise((resolve) => setTimeout(resolve, 0));
    }
  }

  of<K extends WorkerEvent["kind"]>(kind: K, from = 0): Extract<WorkerEvent, { kind: K }>[] {
    return this.heard
      .slice(from)
      .flatMap(({ event }) =>
        event.kind === kind ? [event as Extract<WorkerEvent, { kind: K }>] : [],
      );
  }

  /** Tokens of a request that were heard from `from` on: they begin at `offset` and have no gap. */
  tokens(id = 1, { from = 0, offset = 0 } = {}): number[] {
    const tokens: number[] = [];
    for (const event of this.of("tokens", from)) {
      if (event.requestId !== id) continue;
      expect(event.offset).toBe(offset + tokens.length);
      expect(event.logprobs.length).toBe(event.tokens.length);
      for (const logprob of event.logprobs) expect(logprob).toBeLessThanOrEqual(0.001);
      tokens.push(...event.tokens);
    }
    return tokens;
  }

  /** Runs one chunk to its end; its tokens, and how it ended. */
  async chunk(
    spec: RequestSpec,
    fields: { output?: readonly number[]; chunkTokens?: number; kv?: KvBlob | null } = {},
  ) {
    const from = this.heard.length;
    const { output = [], chunkTokens = TOKENS, ...rest } = fields;
    this.send({ ...runCommand(spec, { output: [...output], chunkTokens }), ...rest });
    await this.until(() => this.of("chunk_done", from).length > 0, "the chunk ends");
    const tokens = this.tokens(spec.requestId, { from, offset: output.length });
    return { tokens, finish: present(this.of("chunk_done", from)[0], "it ended").finish };
  }
}

export function workerSuite(name: string, make: () => Promise<WorkerHarness>): void {
  const fact = (
    what: string,
    check: (bench: Bench, harness: WorkerHarness) => Promise<void> | void,
  ) =>
    test(`${name}: ${what}`, async () => {
      const harness = await make();
      try {
        await check(new Bench(harness), harness);
      } finally {
        await harness.close();
      }
    });

  fact(
    "a response is the same in one piece, in chunks, and continued from elsewhere",
    async (b) => {
      const whole = await b.chunk(specOfId(1));
      expect([whole.tokens.length, whole.finish]).toEqual([TOKENS, "length"]);
      b.worker.send([{ kind: "release", requestId: requestId(1) }]);
      const made: number[] = [];
      for (const [chunkTokens, finish] of [
        [7, null],
        [10, null],
        [100, "length"],
      ] as const) {
        const chunk = await b.chunk(specOfId(1), { output: made, chunkTokens });
        expect(chunk.finish).toBe(finish);
        made.push(...chunk.tokens);
      }
      expect(made).toEqual(whole.tokens);
      b.worker.send([{ kind: "release", requestId: requestId(1) }]);
      const rest = await b.chunk(specOfId(1), { output: whole.tokens.slice(0, 11) });
      expect(rest).toEqual({ tokens: whole.tokens.slice(11), finish: "length" });
    },
  );

  fact("a stop token ends the response, however it is divided", async (b) => {
    const { tokens } = await b.chunk(specOfId(1));
    const last = tokens.findIndex((token, i) => i > TOKENS / 3 && tokens.indexOf(token) === i);
    const stopTokenIds = [present(tokens[last], "a token comes for the first time")];
    const sampling = samplingOf({ seed: 7, tokensMax: TOKENS, stopTokenIds });
    const spec = { ...specOfId(1), sampling };
    const stopped = { tokens: tokens.slice(0, last + 1), finish: "stop" } as const;
    expect(await b.chunk(spec)).toEqual(stopped);
    const first = await b.chunk(spec, { chunkTokens: last - 1 });
    expect(first.finish).toBeNull();
    const rest = await b.chunk(spec, { output: first.tokens });
    expect({ ...rest, tokens: [...first.tokens, ...rest.tokens] }).toEqual(stopped);
  });

  fact("a request runs all the same if the KV that it is to adopt is not there", async (b) => {
    const whole = await b.chunk(specOfId(1));
    b.worker.send([{ kind: "adopt", requestId: requestId(1), from: requestId(9), tokens: 3 }]);
    expect(await b.chunk(specOfId(1))).toEqual(whole);
  });

  fact("requests at the same time do not touch one another", async (b) => {
    const alone = [await b.chunk(specOfId(1)), await b.chunk(specOfId(2))];
    const from = b.heard.length;
    b.worker.send([1, 2].map((id) => runCommand(specOfId(id), { chunkTokens: TOKENS })));
    await b.until(() => b.of("chunk_done", from).length === 2, "both end");
    for (const [i, { tokens }] of alone.entries()) {
      expect(b.tokens(i + 1, { from })).toEqual(tokens);
    }
  });

  fact("KV is handed out once at most, and a response goes on with it or without", async (b) => {
    const whole = await b.chunk(specOfId(1));
    const first = await b.chunk(specOfId(1), { chunkTokens: 5 });
    const ask = { kind: "export", requestId: requestId(1) } as const;
    b.worker.send([ask, ask]);
    await b.until(() => b.of("exported").length === 2, "both are answered");
    const [kv, none] = b.of("exported").map((event) => event.kv);
    expect(none).toBeNull();
    expect(kv?.tokens ?? 0).toBeLessThanOrEqual(KV_MARGIN);
    const rest = await b.chunk(specOfId(1), { output: first.tokens, kv: kv ?? null });
    expect([...first.tokens, ...rest.tokens]).toEqual(whole.tokens);
  });

  fact("a chunk that runs ends where it is when its KV is wanted", async (b) => {
    const whole = await b.chunk(specOfId(1));
    const from = b.heard.length;
    b.worker.send([LONG, { kind: "export", requestId: requestId(1) }]);
    await b.until(() => b.of("exported", from).length === 1, "it is answered");
    const tokens = b.tokens(1, { from });
    expect(tokens).toEqual(whole.tokens.slice(0, tokens.length));
    const kinds = b.heard.slice(from).map(({ event }) => event.kind);
    if (kinds.includes("chunk_done")) {
      expect(kinds.indexOf("chunk_done")).toBeLessThan(kinds.indexOf("exported"));
    }
  });

  fact("a chunk that is parked ends where it is, says so, and goes on from there", async (b) => {
    const whole = await b.chunk(specOfId(1));
    const from = b.heard.length;
    b.worker.send([LONG, { kind: "park", requestId: requestId(1) }]);
    await b.until(() => b.of("chunk_done", from).length === 1, "it ends");
    const first = b.tokens(1, { from });
    expect(first).toEqual(whole.tokens.slice(0, first.length));
    if (b.of("chunk_done", from)[0]?.finish !== null) return;
    const rest = await b.chunk(specOfId(1), { output: first });
    expect([...first, ...rest.tokens]).toEqual(whole.tokens);
  });

  fact("a released request emits nothing more, and can run again", async (b) => {
    const whole = await b.chunk(specOfId(1));
    b.worker.send([LONG, { kind: "release", requestId: requestId(1) }]);
    const from = b.heard.length;
    await b.chunk(specOfId(2));
    expect(b.tokens(1, { from })).toEqual([]);
    expect((await b.chunk(specOfId(1))).tokens).toEqual(whole.tokens);
  });

  fact("updates of draft groups are taken without an answer", async (b) => {
    const { groupId } = specOfId(1);
    const delta = { groupId, sampleIndex: 1, offset: 0, tokens: PROMPT };
    b.worker.send([
      { kind: "register_group", groupId, prompt: PROMPT },
      { kind: "delta", ...delta },
      { kind: "drop_group", groupId },
    ]);
    await b.chunk(specOfId(2));
    expect([...b.of("gap"), ...b.of("failed")]).toEqual([]);
  });

  fact("after an advance all events carry the new epoch, and nothing old runs", async (b) => {
    const epoch = weightEpoch(3);
    const whole = await b.chunk(specOfId(1));
    const from = b.heard.length;
    const other = runCommand(specOfId(2), { chunkTokens: TOKENS });
    b.worker.send([LONG, { kind: "advance", epoch }, other]);
    await b.until(() => b.of("chunk_done", from).some((one) => one.requestId === 2), "it ends");
    const advanced = b.heard.findIndex(({ event }) => event.kind === "advanced");
    const after = b.heard.slice(advanced);
    expect(new Set(after.map((one) => one.epoch))).toEqual(new Set([epoch]));
    expect(b.heard.slice(from, advanced).filter((one) => one.epoch !== 0)).toEqual([]);
    expect(b.tokens(1, { from: advanced })).toEqual([]);
    expect((await b.chunk(specOfId(1))).tokens).toEqual(whole.tokens);
  });

  fact(
    "asleep and awake again, it generates for a canary and goes on",
    async (b, { lacks = [] }) => {
      const { worker } = b;
      const epoch = weightEpoch(1);
      const whole = await b.chunk(specOfId(1));
      for (const operation of [
        { kind: "canary", adapter: null },
        { kind: "sleep", level: 1, mode: "keep" },
        { kind: "canary", adapter: null },
        { kind: "wake", tags: ["weights"] },
        { kind: "wake", tags: ["kv_cache"] },
        { kind: "canary", adapter: null },
      ] as const) {
        expect([operation, (await worker.perform(operation, epoch)).status]).toEqual([
          operation,
          lacks.includes(operation.kind) ? 404 : 200,
        ]);
      }
      expect(await b.chunk(specOfId(1))).toEqual(whole);
    },
  );

  fact(
    "weights are loaded under the next epoch, or refused, and then the old ones serve",
    async (b, { weights = "/weights", lacks = [] }) => {
      const { worker } = b;
      const whole = await b.chunk(specOfId(1));
      const load = { kind: "load", version: "step-1", options: {} } as const;
      const refused = await worker.perform({ ...load, path: ABSENT }, weightEpoch(1));
      expect(lacks.includes("load") ? [404] : [400, 500]).toContain(refused.status);
      expect(await b.chunk(specOfId(1))).toEqual(whole);
      if (lacks.includes("load")) return;
      const { status } = await worker.perform({ ...load, path: weights }, weightEpoch(1));
      expect(status).toBe(200);
      worker.send([{ kind: "advance", epoch: weightEpoch(1) }]);
      await b.chunk(specOfId(2));
      expect(b.heard.at(-1)?.epoch).toBe(weightEpoch(1));
    },
  );

  fact("what it cannot do is a 404", async ({ worker }) => {
    const operation = { kind: "extension", name: "no_such_call", body: {} } as const;
    expect((await worker.perform(operation, weightEpoch(1))).status).toBe(404);
  });

  fact("it names itself, and what it can hold", ({ worker }) => {
    const { slots, kvTokens, contextTokens, kvBytesPerToken } = worker.capacity;
    expect(worker.name).not.toBe("");
    expect(slots).toBeGreaterThanOrEqual(2);
    expect(Math.min(kvTokens, contextTokens)).toBeGreaterThan(KV_MARGIN);
    expect(kvBytesPerToken).toBeGreaterThanOrEqual(0);
    expect(worker.supports(specOfId(1).sampling)).toEqual({ kind: "divided" });
  });

  fact("closed, it ignores commands, and can be closed again", async (b) => {
    await b.worker.close();
    await b.worker.close();
    const from = b.heard.length;
    b.worker.send([LONG]);
    await new Promise((resolve) => setImmediate(resolve));
    expect(b.heard.slice(from)).toEqual([]);
  });

  fact("a worker that fails reports it once, as its last event", async (b, { fail }) => {
    if (fail === undefined) return;
    b.worker.send([LONG]);
    await fail();
    await b.until(() => b.of("failed").length > 0, "it fails");
    b.worker.send([runCommand(specOfId(2), { chunkTokens: TOKENS })]);
    expect(b.of("failed")).toEqual([{ kind: "failed", message: expect.any(String) }]);
    expect(b.heard.at(-1)?.event.kind).toBe("failed");
  });

  test(`${name}: a worker that failed before it had a listener reports it to the listener`, async () => {
    const harness = await make();
    await harness.fail?.();
    const bench = new Bench(harness);
    if (harness.fail !== undefined) {
      await bench.until(() => bench.of("failed").length > 0, "it is reported");
    }
    expect(bench.of("failed").length).toBe(harness.fail === undefined ? 0 : 1);
    await harness.close();
  });
}
