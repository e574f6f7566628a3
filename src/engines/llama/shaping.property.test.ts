// Shaping against its definition in plain JavaScript, and shaped responses against themselves: whole, chunked
// anywhere, moved and drafted they are the same, bit for bit.

import { describe, expect, setDefaultTimeout, test } from "bun:test";
import fc from "fast-check";
import {
  Collector,
  drafterFor,
  FixedPlanner,
  newEngine,
  newRequest,
  pathDraft,
  type Response,
  register,
  run,
  runToEnd,
  skipReason,
  soloResponse,
} from "../../../test/llama/engine-fixture.ts";
import { samplingOf } from "../../../test/suite/request-spec.ts";
import { type LogitShaping, NO_SHAPING, type RequestSpec } from "../../core/request/request.ts";
import type { KvBlob } from "../../core/rollout/worker.ts";
import { embeddedSupport } from "./control.ts";
import { Sampler } from "./sampler.ts";
import { ShapingState } from "./shaping.ts";

setDefaultTimeout(180_000);

const SIZE = 200;

/** The tokens that vLLM's rules keep, by sorting everything. */
function kept(row: readonly number[], temperature: number, shaping: LogitShaping): Set<number> {
  const max = Math.max(...row);
  let tokens = row
    .map((logit, token) => ({ token, logit, weight: Math.exp((logit - max) / temperature) }))
    .filter(({ weight }) => weight > 0 && weight >= shaping.minP)
    .toSorted((a, b) => b.logit - a.logit || a.token - b.token);
  if (shaping.topK > 0) {
    const last = tokens[Math.min(shaping.topK, tokens.length) - 1]?.logit ?? 0;
    tokens = tokens.filter(({ logit }) => logit >= last);
  }
  const total = tokens.reduce((sum, { weight }) => sum + weight, 0);
  let above = 0;
  const result = new Set<number>();
  for (const { token, weight } of tokens) {
    if (above >= shaping.topP * total && shaping.topP < 1) break;
    result.add(token);
    above += weight;
  }
  return result;
}

const rowArbitrary = fc.oneof(
  fc.array(fc.integer({ min: -300, max: 300 }), { minLength: SIZE, maxLength: SIZE }),
  // Few values: ties everywhere, and more tokens in one bucket than are sorted by insertion.
  fc.array(fc.integer({ min: 0, max: 3 }), { minLength: SIZE, maxLength: SIZE }),
);

test("filter, draw, writeTop: what is kept, drawn and reported is what sorting everything gives", () => {
  const sampler = new Sampler(SIZE);
  const filters = fc.record({
    topK: fc.oneof(fc.constant(0), fc.integer({ min: 1, max: SIZE + 5 })),
    // No multiple of a simple fraction: the cut falls between tokens, whatever the order of a sum.
    topP: fc.oneof(
      fc.constant(1),
      fc.integer({ min: 1, max: 97 }).map((n) => (n + 0.01234567) / 98),
    ),
    minP: fc.oneof(fc.constant(0), fc.double({ min: 0.0001, max: 1, noNaN: true })),
  });
  const temperatures = fc.constantFrom(0.2, 1, 7);
  fc.assert(
    fc.property(
      rowArbitrary,
      filters,
      temperatures,
      fc.double({ min: 0, max: 0.999999 }),
      (whole, some, temperature, u) => {
        const row = whole.map((n) => Math.fround(n / 37));
        const shaping = { ...NO_SHAPING, ...some };
        sampler.row.set(row);
        sampler.filter(temperature, shaping);
        const expected = kept(row, temperature, shaping);
        const tokens = [...sampler.row.keys()].filter(
          (t) => sampler.row[t] !== Number.NEGATIVE_INFINITY,
        );
        expect(tokens).toEqual([...expected].toSorted((a, b) => a - b));
        const token = sampler.draw(temperature, u);
        expect(expected.has(token)).toBe(true);
        const max = Math.max(...row);
        const weight = (t: number) => Math.exp(((row[t] ?? 0) - max) / temperature);
        const total = tokens.reduce((sum, t) => sum + weight(t), 0);
        expect(sampler.logprob).toBeCloseTo(Math.log(weight(token) / total), 9);
        const target = { tokens: new Int32Array(9), logprobs: new Float32Array(9), at: 2 };
        sampler.writeTop(temperature, 7, target);
        const ranked = tokens.toSorted((a, b) => (row[b] ?? 0) - (row[a] ?? 0) || a - b);
        for (let i = 0; i < 7; i += 1) {
          const alternative = ranked[i] ?? -1;
          expect(target.tokens[2 + i]).toBe(alternative);
          const logprob = alternative < 0 ? -Infinity : Math.log(weight(alternative) / total);
          expect(target.logprobs[2 + i]).toBeCloseTo(logprob, 4);
        }
        expect(target.tokens.subarray(0, 2)).toEqual(new Int32Array(2));
      },
    ),
  );
});

function stateOf(shaping: Partial<LogitShaping>, prompt: number[] = []): ShapingState {
  const all = { ...NO_SHAPING, ...shaping };
  const sampling = samplingOf({ seed: 1, tokensMax: 9, stopTokenIds: [2] });
  const request = { prompt: Int32Array.from(prompt), sampling: { ...sampling, shaping: all } };
  return new ShapingState(request as unknown as RequestSpec, all);
}

test("apply: penalties follow the definitions, after bias and mask", () => {
  const state = stateOf(
    {
      tokensMin: 3,
      repetitionPenalty: 2,
      presencePenalty: 0.5,
      frequencyPenalty: 0.25,
      logitBias: [{ token: 4, bias: -3 }],
    },
    [0, 4, 4],
  );
  for (const token of [1, 1, 5]) state.note(token);
  const row = Float32Array.of(4, 4, 4, 4, 1, -1);
  state.apply(row, 2);
  // In the prompt: 4 / 2. Twice in the output: 4 / 2 - 2 * 0.25 - 0.5. Masked. Free. (1 - 3) * 2. -1 * 2 - 0.75.
  expect([...row]).toEqual([2, 1, -Infinity, 4, -4, -2.75]);
  const later = Float32Array.of(4, 4, 4, 4, 1, -1);
  state.apply(later, 3);
  expect(later[2]).toBe(4);
});

test("embeddedSupport: everything but engine fields, unknown tokens and too many alternatives", () => {
  const plain = samplingOf({ seed: 1, tokensMax: 9, stopTokenIds: [2] });
  const shaping = { ...NO_SHAPING, topK: 3, logitBias: [{ token: 9, bias: 1 }] };
  expect(embeddedSupport({ ...plain, shaping, topLogprobs: 20 }, 10)).toEqual({ kind: "divided" });
  expect(embeddedSupport({ ...plain, shaping }, 9)).toMatchObject({
    kind: "refused",
    field: "logit_bias",
  });
  for (const field of ["structured_outputs", "bad_words"]) {
    const engineFields = { [field]: [] };
    expect(embeddedSupport({ ...plain, engineFields }, 9)).toMatchObject({
      kind: "refused",
      field,
    });
  }
  expect(embeddedSupport({ ...plain, topLogprobs: 33 }, 9)).toMatchObject({ field: "logprobs" });
});

const SHAPINGS: Record<string, Partial<LogitShaping>> = {
  penalties: { repetitionPenalty: 1.2, presencePenalty: 0.3, frequencyPenalty: 0.2 },
  filters: { topK: 20, topP: 0.9, minP: 0.02 },
  all: {
    tokensMin: 30,
    topK: 40,
    topP: 0.95,
    minP: 0.001,
    repetitionPenalty: 1.1,
    presencePenalty: -0.2,
    frequencyPenalty: 0.1,
    logitBias: [
      { token: 1359, bias: 6 },
      { token: 13, bias: -2 },
    ],
  },
};

function shaped(name: string, id = 0, temperature = 2): RequestSpec {
  const shaping = { ...NO_SHAPING, ...SHAPINGS[name] };
  return newRequest(id, { shaping, topLogprobs: 3, temperature, tokensMax: 40 });
}

function expectEqual(response: Response, spec: RequestSpec): void {
  const { chunks: _, ...rest } = response;
  const { chunks: __, ...solo } = soloResponse(spec);
  expect(rest).toEqual(solo);
}

describe.skipIf(skipReason !== null)("shaped responses", () => {
  test("shaping changes what is drawn, and stop tokens wait for the least length", () => {
    const plain = soloResponse(newRequest(0, { tokensMax: 40, temperature: 2 })).tokens;
    for (const name of Object.keys(SHAPINGS)) {
      expect(soloResponse(shaped(name)).tokens).not.toEqual(plain);
    }
    for (const id of [0, 1, 2, 3]) {
      const { tokens } = soloResponse(shaped("all", id));
      expect(tokens.length).toBeGreaterThan(30);
      expect(tokens.slice(0, 30)).not.toContain(1359);
    }
  });

  test("alternatives: likeliest first; the drawn token's own logprob is among them where it is one", () => {
    const { tokens, logprobs, topTokens, topLogprobs } = soloResponse(shaped("penalties"));
    expect(topTokens.length).toBe(tokens.length * 3);
    let found = 0;
    for (const [i, token] of tokens.entries()) {
      const row = topLogprobs.slice(i * 3, i * 3 + 3);
      expect(row).toEqual(row.toSorted((a, b) => b - a));
      const rank = topTokens.slice(i * 3, i * 3 + 3).indexOf(token);
      if (rank < 0) continue;
      found += 1;
      expect(row[rank]).toBe(logprobs[i] ?? 1);
    }
    expect(found).toBeGreaterThan(5);
    const greedy = soloResponse(shaped("filters", 1, 0));
    expect(greedy.tokens).toEqual(greedy.topTokens.filter((_, i) => i % 3 === 0));
  });

  test("chunked at every boundary on engines that share nothing: the same bits", () => {
    const spec = shaped("all");
    const { requestId } = spec;
    const { length } = soloResponse(spec).tokens;
    const engines = [newEngine(), newEngine()] as const;
    // At every boundary the KV moves in one of the passes, is recomputed in one, and stays in one.
    for (const pass of [0, 1, 2]) {
      const collector = new Collector();
      let kv: KvBlob | null = null;
      let [here, there] = engines;
      for (let made = 1; made <= length; made += 1) {
        here.command(run(spec, { chunkTokens: 1, output: collector.output(requestId), kv }));
        runToEnd(here, collector);
        kv = null;
        const way = (made + pass) % 3;
        if (way === 2 || made === length) continue;
        here.command({ kind: way === 0 ? "export" : "release", requestId });
        collector.take(here.drain());
        if (way === 0) kv = collector.exported.get(requestId) ?? null;
        [here, there] = [there, here];
      }
      expectEqual(collector.response(requestId), spec);
    }
    for (const engine of engines) engine.close();
  });

  test("batched, preempted and drafted: the same bits", () => {
    const names = Object.keys(SHAPINGS);
    const specs = Array.from({ length: 8 }, (_, id) =>
      shaped(names[id % names.length] ?? "all", id, id === 5 ? 0 : 2),
    );
    const drafter = drafterFor(specs, (view) => pathDraft(view, view.dice % 7));
    const planner = new FixedPlanner();
    const engine = newEngine({ slots: 5, kvTokens: 150, speculation: { drafter, planner } });
    register(engine, specs);
    for (const spec of specs) engine.command(run(spec));
    const collector = runToEnd(engine);
    for (const spec of specs) expectEqual(collector.response(spec.requestId), spec);
    const { acceptedTokens, draftedTokens, preemptions } = engine.stats();
    expect(acceptedTokens).toBeGreaterThan(0);
    expect(draftedTokens).toBeGreaterThan(acceptedTokens);
    expect(preemptions).toBeGreaterThan(0);
    engine.close();
  });
});
