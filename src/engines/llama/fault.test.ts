// One request's fault on the real engine: it is told why, what it held is freed, and every other response is, bit
// for bit, that of the request run alone.

import { describe, expect, setDefaultTimeout, test } from "bun:test";
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import fc from "fast-check";
import {
  Collector,
  drafterFor,
  expectSolo,
  FixedPlanner,
  newEngine,
  newRequest,
  OTHER_MODEL_PATH,
  pathDraft,
  register,
  run,
  runToEnd,
  ScriptedDrafter,
  sharedModel,
  skipReason,
  soloResponse,
} from "../../../test/llama/engine-fixture.ts";
import { temporaryFolder } from "../../../test/suite/temporary-folder.ts";
import { groupId, requestId } from "../../core/base/ids.ts";
import { Replica } from "../../core/draft/replica.ts";
import { type LogitShaping, NO_SHAPING, type RequestSpec } from "../../core/request/request.ts";
import type { Refusal } from "../../core/request/response.ts";
import type { WorkerCommand } from "../../core/rollout/worker.ts";
import { readGgufHead } from "./gguf.ts";
import { LlamaWeights } from "./weights.ts";

setDefaultTimeout(180_000);

const scratch = temporaryFolder("fault");

function refusalsOf(collector: Collector): Map<number, Refusal> {
  const refusals = new Map<number, Refusal>();
  for (const event of collector.others) {
    if (event.kind !== "chunk_done" || event.refusal === undefined) continue;
    expect(event.finish).toBe("abort");
    refusals.set(event.requestId, event.refusal);
  }
  return refusals;
}

/** A bias list that breaks when it is read for the `count`-th time: what no check can foresee. */
function breakingShaping(count: number): LogitShaping {
  let reads = 0;
  const logitBias = {
    length: 1,
    find: () => undefined,
    *[Symbol.iterator]() {
      reads += 1;
      if (reads >= count) throw new RangeError("the list is broken");
      yield { token: 5, bias: 0.5 };
    },
  } as unknown as LogitShaping["logitBias"];
  return { ...NO_SHAPING, logitBias };
}

describe.skipIf(skipReason !== null)("faults of one request", () => {
  test("an error while one request is drawn ends it alone, with its draft", () => {
    const specs = Array.from({ length: 6 }, (_, id) =>
      newRequest(id, { tokensMax: 20, shaping: id % 2 === 0 ? null : breakingShaping(3 + 2 * id) }),
    );
    const bias = { ...NO_SHAPING, logitBias: [{ token: 5, bias: 0.5 }] };
    const sound = (spec: RequestSpec) => ({
      ...spec,
      sampling: { ...spec.sampling, shaping: spec.sampling.shaping && bias },
    });
    const drafter = drafterFor(specs, (view) => pathDraft(view, 3), sound);
    const planner = new FixedPlanner();
    const engine = newEngine({ slots: 6, speculation: { drafter, planner } });
    register(engine, specs);
    for (const spec of specs) engine.command(run(spec));
    const collector = runToEnd(engine);
    const refusals = refusalsOf(collector);
    expect([...refusals.keys()].toSorted()).toEqual([1, 3, 5]);
    for (const spec of specs) {
      const { requestId: id } = spec;
      if (id % 2 === 0) {
        expectSolo(collector, spec);
        continue;
      }
      expect(refusals.get(id)).toEqual({
        status: 502,
        message: "the engine failed at this request: the list is broken",
      });
      // What was drawn before is right.
      const { tokens } = collector.response(id);
      expect(tokens).toEqual(soloResponse(sound(spec)).tokens.slice(0, tokens.length));
    }
    expect(engine.stats()).toMatchObject({ running: 0, waiting: 0, kvTokensUsed: 0 });
    // Every stream is free again: as many requests as ever run side by side.
    for (const { requestId: id } of specs) {
      const again = { ...newRequest(id, { tokensMax: 20 }), requestId: requestId(100 + id) };
      engine.command(run(again, { draft: null }));
    }
    runToEnd(engine, collector);
    for (const id of [0, 2, 4]) {
      expect(collector.response(100 + id).tokens).toEqual(collector.response(id).tokens);
    }
    expect(collector.response(105).finish).not.toBe(null);
    engine.close();
  });

  test("weights that are not numbers: each request is refused, and good weights serve afterwards", () => {
    const path = join(scratch, "nan.gguf");
    const bytes = readFileSync(OTHER_MODEL_PATH);
    const norm = readGgufHead(OTHER_MODEL_PATH).tensors.find(
      (t) => t.name === "output_norm.weight",
    );
    if (norm === undefined) throw new Error("the model has a last norm");
    bytes.writeFloatLE(Number.NaN, norm.offset);
    writeFileSync(path, bytes);
    const { model: sound } = sharedModel();
    const damaged = LlamaWeights.load(path);
    const engine = newEngine({ model: damaged });
    for (let id = 0; id < 6; id += 1) engine.command(run(newRequest(id, { temperature: id % 2 })));
    const collector = runToEnd(engine);
    const refusals = refusalsOf(collector);
    expect(refusals.size).toBe(6);
    for (const { status, message } of refusals.values()) {
      expect(status).toBe(502);
      expect(message).toContain("logits are not numbers");
    }
    engine.reload(sound, engine.epoch);
    engine.command(run(newRequest(9)));
    runToEnd(engine, collector);
    expectSolo(collector, newRequest(9));
    engine.close();
    damaged.free();
  });

  test("draft tokens out of the vocabulary are not drawn, and fail no step; a sample beyond its room has none", () => {
    const specs = [newRequest(0), { ...newRequest(1), sampleIndex: 4096 }];
    const foreign = Int32Array.of(...Array(40).fill(1376), ...Array(40).fill(2 ** 31 - 1));
    const drafter = new ScriptedDrafter(
      () => [...foreign],
      ({ future }) => ({ tokens: future.slice(38, 42), parents: [-1, 0, 1, 2] }),
    );
    for (const one of [drafter, new Replica()]) {
      const engine = newEngine({ speculation: { drafter: one, planner: new FixedPlanner() } });
      for (const { groupId, prompt } of specs) {
        engine.command({ kind: "register_group", groupId, prompt, past: [prompt] });
      }
      for (const spec of specs) engine.command(run(spec));
      const collector = runToEnd(engine);
      expect(refusalsOf(collector).size).toBe(0);
      for (const spec of specs) expectSolo(collector, spec);
      if (one === drafter) expect(engine.stats().draftedTokens).toBeGreaterThan(0);
      engine.close();
    }
  });

  test("whatever commands come, in whatever order, the engine continues and draws right", () => {
    const speculation = { drafter: new Replica(), planner: new FixedPlanner() };
    const engine = newEngine({ slots: 3, kvTokens: 120, contextTokens: 64, speculation });
    const good = newRequest(1000, { tokensMax: 8 });
    fc.assert(
      fc.property(fc.array(command, { minLength: 5, maxLength: 60 }), (commands) => {
        for (const one of commands) {
          if (one === "step") engine.step();
          else engine.command(one);
          engine.drain();
        }
        engine.command(run(good, { draft: null }));
        // Others may still run, with tokens that were drained above.
        const collector = new Collector();
        const takeGood = () => {
          const events = engine.drain();
          collector.take(
            events.filter((event) => !("requestId" in event) || event.requestId === 1000),
          );
        };
        while (engine.step()) takeGood();
        takeGood();
        expectSolo(collector, good);
        engine.dropAll();
      }),
      { numRuns: 60 },
    );
    engine.close();
  });
});

const token = fc.nat(1375);
const tokenIds = fc.array(token, { maxLength: 12 }).map((list) => Int32Array.from(list));
const group = fc.constantFrom("g0", "g1", "", "x".repeat(5000)).map(groupId);
const request = fc.nat(6).map(requestId);
const sampling = fc
  .record(
    {
      temperature: fc.constantFrom(0, 0.3, 1, 2),
      tokensMax: fc.integer({ min: 1, max: 30 }),
      topLogprobs: fc.nat(20),
      stopTokenIds: fc.array(token, { maxLength: 4 }),
      shaping: fc
        .record(
          {
            tokensMin: fc.nat(20),
            topK: fc.nat(1400),
            topP: fc.constantFrom(0.01, 0.5, 1),
            minP: fc.constantFrom(0, 0.5, 1),
            repetitionPenalty: fc.constantFrom(0.5, 1, 2),
            logitBias: fc.array(
              fc.record({ token, bias: fc.constantFrom(-Infinity, -100, 0, 100) }),
              { maxLength: 3 },
            ),
          },
          { requiredKeys: [] },
        )
        .map((some) => ({ ...NO_SHAPING, ...some })),
    },
    { requiredKeys: [] },
  )
  .map((some) => ({ tokensMax: 12, ...some }));
const count = fc.constantFrom(0, 1, 2, 7, 63, 4095, 4096, 1e9);
const blob = fc.record({
  tokens: fc.oneof(count, fc.constantFrom(-1, 1.5, 2 ** 53)),
  bytes: fc.uint8Array({ maxLength: 80 }).map((bytes) => Uint8Array.from(bytes).buffer),
});
const draft = fc.record({ groupId: group, sampleIndex: count });
const command: fc.Arbitrary<WorkerCommand | "step"> = fc.oneof(
  { arbitrary: fc.constant("step" as const), weight: 4 },
  {
    arbitrary: fc
      .record({
        id: request,
        sampling,
        output: fc.oneof(fc.constant(new Int32Array(0)), tokenIds),
        chunkTokens: fc.integer({ min: 1, max: 20 }),
        kv: fc.option(blob),
        draft: fc.option(draft),
      })
      .map(({ id, sampling: some, ...options }) => run(newRequest(id, some), options)),
    weight: 4,
  },
  fc.record({ kind: fc.constantFrom("export" as const, "release" as const), requestId: request }),
  fc.record({ kind: fc.constant("register_group" as const), groupId: group, prompt: tokenIds }),
  fc.record({
    kind: fc.constant("delta" as const),
    groupId: group,
    sampleIndex: count,
    offset: count,
    tokens: tokenIds,
  }),
  fc.record({ kind: fc.constant("drop_group" as const), groupId: group }),
);
