// One request's fault on the real engine: it is told why, what it held is freed, and every other response is, bit
// for bit, that of the request run alone.

import { describe, expect, setDefaultTimeout, test } from "bun:test";
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import fc from "fast-check";
import {
  Collector,
  expectSolo,
  FixedPlanner,
  newEngine,
  newRequest,
  OTHER_MODEL_PATH,
  pathDraft,
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
  test("a request that can never run is refused, naming what and the bound; the others are served", () => {
    const bad: [Partial<RequestSpec["sampling"]>, string][] = [
      [{ tokensMax: 600 }, "tokens of 512"],
      [{ temperature: 1e-320 }, "temperature, which is 1e-320, not 0 or in 1e-10..1000000"],
      [{ temperature: Number.NaN }, "temperature, which is NaN"],
      [{ topLogprobs: 33 }, "logprobs, which is 33, not a whole number in 0..20"],
      [{ engineFields: { bad_words: ["a"] } }, "bad_words, which is not supported"],
      [{ shaping: { ...NO_SHAPING, repetitionPenalty: 1e-38 } }, "is 1e-38, not in 0.001..1000"],
      [{ shaping: { ...NO_SHAPING, logitBias: [{ token: 9999, bias: 1 }] } }, "9999"],
    ];
    const engine = newEngine();
    const good = newRequest(0);
    engine.command(run(good));
    for (const [i, [sampling]] of bad.entries()) {
      engine.command(run(newRequest(1 + i, { tokensMax: 4, ...sampling })));
    }
    const alien = { ...newRequest(100, { tokensMax: 4 }), prompt: Int32Array.of(1376) };
    engine.command(run(alien));
    const collector = runToEnd(engine);
    const refusals = refusalsOf(collector);
    for (const [i, [, message]] of bad.entries()) {
      expect(refusals.get(1 + i)).toMatchObject({ status: 400 });
      expect(refusals.get(1 + i)?.message).toContain(message);
    }
    expect(refusals.get(100)?.message).toContain("not in 0..1375");
    expectSolo(collector, good);
    expect(engine.stats()).toMatchObject({ running: 0, waiting: 0, kvTokensUsed: 0 });
    engine.close();
  });

  test("a parked request that comes back wrong is refused, and its KV freed", () => {
    const engine = newEngine();
    const spec = newRequest(0);
    engine.command(run(spec, { chunkTokens: 5 }));
    const collector = runToEnd(engine);
    expect(engine.stats().kvTokensUsed).toBeGreaterThan(0);
    const output = collector.output(0);
    engine.command(run(spec, { output, chunkTokens: 0 }));
    runToEnd(engine, collector);
    expect(refusalsOf(collector).get(0)?.message).toContain("a chunk of 0 tokens");
    expect(engine.stats()).toMatchObject({ running: 0, waiting: 0, kvTokensUsed: 0 });
    engine.close();
  });

  test("an error while one request is drawn ends it alone, with its draft", () => {
    const specs = Array.from({ length: 6 }, (_, id) =>
      newRequest(id, { tokensMax: 20, shaping: id % 2 === 0 ? null : breakingShaping(3 + 2 * id) }),
    );
    const futures = new Map(
      specs.map((spec) => {
        const shaping = { ...NO_SHAPING, logitBias: [{ token: 5, bias: 0.5 }] };
        const sampling = { ...spec.sampling, shaping: spec.sampling.shaping && shaping };
        const sound = { ...spec, sampling };
        return [`${spec.groupId}/${spec.sampleIndex}`, soloResponse(sound)];
      }),
    );
    const drafter = new ScriptedDrafter(
      (query) => futures.get(`${query.groupId}/${query.sampleIndex}`)?.tokens ?? [],
      (view) => pathDraft(view, 3),
    );
    const planner = new FixedPlanner();
    const engine = newEngine({ slots: 6, speculation: { drafter, planner } });
    for (const { groupId, prompt } of specs) {
      engine.command({ kind: "register_group", groupId, prompt });
    }
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
      const whole = futures.get(`${spec.groupId}/${spec.sampleIndex}`)?.tokens ?? [];
      expect(tokens).toEqual(whole.slice(0, tokens.length));
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
    const damaged = LlamaWeights.load(sharedModel().library, path);
    const engine = newEngine({ model: damaged });
    for (let id = 0; id < 6; id += 1) engine.command(run(newRequest(id, { temperature: id % 2 })));
    const collector = runToEnd(engine);
    const refusals = refusalsOf(collector);
    expect(refusals.size).toBe(6);
    for (const { status, message } of refusals.values()) {
      expect(status).toBe(502);
      expect(message).toContain("logits are not numbers");
    }
    engine.reload(sharedModel().model, engine.epoch);
    engine.command(run(newRequest(9)));
    runToEnd(engine, collector);
    expectSolo(collector, newRequest(9));
    engine.close();
    damaged.free();
  });

  test("a group that the drafter cannot take is not drafted for; a sample beyond its room neither", () => {
    const drafter = new Replica();
    const engine = newEngine({ speculation: { drafter, planner: new FixedPlanner() } });
    const specs = [newRequest(0), { ...newRequest(1), sampleIndex: 4096 }, newRequest(2)];
    const [first, beyond, other] = specs as [RequestSpec, RequestSpec, RequestSpec];
    const negative = Int32Array.of(1, -7);
    const { groupId: broken } = first;
    engine.command({ kind: "register_group", groupId: broken, prompt: negative });
    expect(drafter.has(broken)).toBe(false);
    const foreign = Int32Array.of(1, 1376);
    engine.command({ kind: "register_group", groupId: broken, prompt: foreign });
    expect(drafter.has(broken)).toBe(false);
    for (const past of [[negative], [foreign]]) {
      const { prompt } = first;
      engine.command({ kind: "register_group", groupId: broken, prompt, past });
      expect(drafter.has(broken)).toBe(false);
    }
    for (const { groupId, prompt } of [beyond, other]) {
      engine.command({ kind: "register_group", groupId, prompt, past: [prompt] });
    }
    const delta = { groupId: other.groupId, offset: 0 };
    engine.command({ kind: "delta", ...delta, sampleIndex: 9, tokens: negative });
    expect(drafter.has(other.groupId)).toBe(false);
    const far = { groupId: beyond.groupId, offset: 3, sampleIndex: 5000 };
    engine.command({ kind: "delta", ...far, tokens: Int32Array.of(1) });
    expect(drafter.has(beyond.groupId)).toBe(true);
    for (const spec of specs) engine.command(run(spec));
    const collector = runToEnd(engine);
    expect(refusalsOf(collector).size).toBe(0);
    for (const spec of specs) expectSolo(collector, spec);
    engine.close();
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

const odd = fc.constantFrom(0, 1, -1, 2, 7, 63, 64, 4095, 4096, 1e9, 1.5, -0.5, 2 ** 31, 2 ** 53);
const wild = fc.oneof(odd, fc.constantFrom(Number.NaN, Number.POSITIVE_INFINITY, 1e-320, 1e300));
const tokenIds = fc
  .array(fc.oneof(fc.nat(1375), fc.constantFrom(-1, 1376, -(2 ** 31), 2 ** 31 - 1)), {
    maxLength: 12,
  })
  .map((list) => Int32Array.from(list));
const group = fc.constantFrom("g0", "g1", "", "x".repeat(5000)).map(groupId);
const request = fc.nat(6).map(requestId);
/** Mostly what a request has; now and then anything. */
const sampling = fc
  .record(
    {
      temperature: wild,
      tokensMax: fc.oneof(fc.integer({ min: 1, max: 30 }), odd),
      topLogprobs: fc.oneof(fc.nat(20), odd),
      stopTokenIds: fc.array(fc.oneof(fc.nat(1375), odd), { maxLength: 4 }),
      shaping: fc
        .record(
          {
            tokensMin: fc.oneof(fc.nat(20), odd),
            topK: odd,
            topP: wild,
            minP: wild,
            repetitionPenalty: wild,
            presencePenalty: wild,
            frequencyPenalty: wild,
            logitBias: fc.array(fc.record({ token: fc.oneof(fc.nat(1375), odd), bias: wild }), {
              maxLength: 3,
            }),
          },
          { requiredKeys: [] },
        )
        .map((some) => ({ ...NO_SHAPING, ...some })),
    },
    { requiredKeys: [] },
  )
  .map((some) => ({ tokensMax: 12, ...some }));
const blob = fc.record({
  tokens: odd,
  bytes: fc.uint8Array({ maxLength: 80 }).map((bytes) => Uint8Array.from(bytes).buffer),
});
const draft = fc.record({ groupId: group, sampleIndex: odd });
const command: fc.Arbitrary<WorkerCommand | "step"> = fc.oneof(
  { arbitrary: fc.constant("step" as const), weight: 4 },
  {
    arbitrary: fc
      .record({
        id: request,
        sampling,
        output: fc.oneof(fc.constant(new Int32Array(0)), tokenIds),
        chunkTokens: fc.oneof(fc.integer({ min: 1, max: 20 }), odd),
        kv: fc.option(blob),
        draft: fc.option(draft),
        prompt: fc.option(tokenIds, { freq: 6 }),
      })
      .map(({ id, sampling: some, prompt, ...options }) => {
        const spec = newRequest(id, some);
        return run(prompt === null ? spec : { ...spec, prompt }, options);
      }),
    weight: 4,
  },
  fc.record({ kind: fc.constantFrom("export" as const, "release" as const), requestId: request }),
  fc.record({ kind: fc.constant("register_group" as const), groupId: group, prompt: tokenIds }),
  fc.record({
    kind: fc.constant("delta" as const),
    groupId: group,
    sampleIndex: odd,
    offset: odd,
    tokens: tokenIds,
  }),
  fc.record({ kind: fc.constant("drop_group" as const), groupId: group }),
);
