// The engine against itself: whatever the batch, the chunks, the drafts, the moves and the preemptions, tokens
// and logprobs are, bit for bit, those of the request run alone. And the budget, queue and port rules.

import { describe, expect, setDefaultTimeout, test } from "bun:test";
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
  type ScriptedDraft,
  ScriptedDrafter,
  type ScriptView,
  skipReason,
  soloResponse,
} from "../../../test/llama/engine-fixture.ts";
import { mix32 } from "../../core/base/hash.ts";
import { groupId, requestId, weightEpoch } from "../../core/base/ids.ts";
import { drawKey, type RequestSpec } from "../../core/request/request.ts";
import { LlamaWeights } from "./weights.ts";

setDefaultTimeout(180_000);

const requests = (count: number): RequestSpec[] =>
  Array.from({ length: count }, (_, id) => newRequest(id));

describe.skipIf(skipReason !== null)("exactness", () => {
  test("verifications: a chunk's end names the draft tokens and the accepted ones, by their places", () => {
    const specs = requests(3);
    const drafter = drafterFor(specs, (view) => pathDraft(view, view.dice % 8));
    const speculation = { drafter, planner: new FixedPlanner() };
    const engine = newEngine({ slots: 3, speculation });
    register(engine, specs);
    for (const spec of specs) engine.command(run(spec));
    const { others, responses } = runToEnd(engine);
    let drafted = 0;
    let accepted = 0;
    for (const event of others) {
      if (event.kind !== "chunk_done") continue;
      const { draftedTokens, acceptedTokens, verifications = [] } = event.drafts ?? {};
      let chunkDrafted = 0;
      let chunkAccepted = 0;
      let end = 0;
      for (let i = 0; i < verifications.length; i += 3) {
        const [offset = -1, tokens = 0, kept = 0] = verifications.slice(i, i + 3);
        expect(offset).toBeGreaterThanOrEqual(end);
        expect(kept).toBeLessThanOrEqual(tokens);
        end = offset + kept;
        chunkDrafted += tokens;
        chunkAccepted += kept;
      }
      expect(end).toBeLessThanOrEqual(responses.get(event.requestId)?.tokens.length ?? 0);
      expect([chunkDrafted, chunkAccepted]).toEqual([draftedTokens ?? 0, acceptedTokens ?? 0]);
      drafted += chunkDrafted;
      accepted += chunkAccepted;
    }
    expect(engine.stats()).toMatchObject({ draftedTokens: drafted, acceptedTokens: accepted });
    expect(accepted).toBeGreaterThan(0);
    engine.close();
  });

  test("an engine that has been profiled draws the same", () => {
    const specs = requests(3);
    let nowMs = 0;
    const clock = {
      nowMs: () => {
        nowMs += 1;
        return nowMs;
      },
    };
    const engine = newEngine({ cpuClock: clock });
    const cost = engine.profile(60);
    expect(cost.ms(4, 4)).toBeGreaterThan(0);
    expect(engine.stats().draftSavedMs).toBe(0);
    for (const spec of specs) engine.command(run(spec));
    const startMs = clock.nowMs();
    const before = engine.stats().busyMs;
    expectSolo(runToEnd(engine), ...specs);
    // Engine time is of the same clock, in steps alone.
    const busyMs = engine.stats().busyMs - before;
    expect(busyMs).toBeGreaterThan(0);
    expect(busyMs).toBeLessThan(clock.nowMs() - startMs);
    engine.close();
  });

  test("while drafting rests nothing is proposed", () => {
    const spec = newRequest(0);
    const drafter = drafterFor([spec], (view) => pathDraft(view, 2));
    const engine = newEngine({ speculation: { drafter, planner: new FixedPlanner(0) } });
    register(engine, [spec]);
    engine.command(run(spec));
    expectSolo(runToEnd(engine), spec);
    expect(engine.stats()).toMatchObject({ drafts: 0, draftedTokens: 0 });
    expect(drafter.proposals).toBe(0);
    engine.close();
  });

  test("a request without a draft source, or of a group not registered, is not drafted for", () => {
    const specs = [newRequest(0), newRequest(1)];
    const drafter = drafterFor(specs, (view) => pathDraft(view, 3));
    const engine = newEngine({ speculation: { drafter, planner: new FixedPlanner() } });
    register(engine, [newRequest(0)]);
    engine.command(run(newRequest(0), { draft: null }));
    engine.command(run(newRequest(1)));
    expectSolo(runToEnd(engine), ...specs);
    expect(engine.stats().drafts).toBe(0);
    engine.close();
  });

  test("everything at once: small chunks, moves between engines, drafts, tight KV", () => {
    storm({ seed: 1, engines: 2, kvTokens: 190 });
  });

  test("everything at once, with parked KV swapped out for want of streams", () => {
    storm({ seed: 2, engines: 2, kvTokens: 1000 });
  });
});

/** Runs 12 requests over several engines, deciding by `seed` what happens between two chunks. */
function storm(options: { seed: number; engines: number; kvTokens: number }): void {
  const specs = requests(12);
  const script = (view: ScriptView): ScriptedDraft => pathDraft(view, view.dice % 7);
  const engines = Array.from({ length: options.engines }, (_, i) => {
    const drafter = drafterFor(specs, script);
    const planner = new FixedPlanner(4 + i);
    const engine = newEngine({
      slots: 3,
      kvTokens: options.kvTokens,
      spareStreams: 2,
      prefillRows: 11 + i,
      speculation: { drafter, planner },
    });
    register(engine, specs);
    return engine;
  });
  const collector = new Collector();
  let dice = options.seed;
  const roll = (sides: number): number => {
    dice = mix32(dice + 0x9e37);
    return dice % sides;
  };
  const dispatch = (spec: RequestSpec, at: number, kv = false): void => {
    const blob = kv ? (collector.exported.get(spec.requestId) ?? null) : null;
    const output = collector.output(spec.requestId);
    engines[at]?.command(run(spec, { output, chunkTokens: 1 + roll(14), kv: blob }));
  };
  const home = new Map(specs.map((spec) => [spec.requestId as number, roll(options.engines)]));
  const chunks = new Map<number, number>();
  for (const spec of specs) dispatch(spec, home.get(spec.requestId) ?? 0);
  for (let working = true; working; ) {
    working = false;
    for (const engine of engines) working = engine.step() || working;
    for (const engine of engines) collector.take(engine.drain());
    for (const spec of specs) {
      const { requestId: id } = spec;
      const response = collector.response(id);
      if (response.finish !== null || response.chunks === (chunks.get(id) ?? 0)) continue;
      chunks.set(id, response.chunks);
      working = true;
      const from = home.get(id) ?? 0;
      const act = roll(4);
      if (act >= 2) {
        dispatch(spec, from);
        continue;
      }
      const to = (from + 1) % options.engines;
      home.set(id, to);
      engines[from]?.command(
        act === 0 ? { kind: "export", requestId: id } : { kind: "release", requestId: id },
      );
      for (const engine of engines) collector.take(engine.drain());
      dispatch(spec, to, act === 0);
    }
  }
  expectSolo(collector, ...specs);
  const stats = engines.map((engine) => engine.stats());
  const sum = (pick: (one: (typeof stats)[number]) => number): number =>
    stats.reduce((total, one) => total + pick(one), 0);
  expect(sum((one) => one.kvLoads)).toBeGreaterThan(0);
  expect(sum((one) => one.kvLoadFailures)).toBe(0);
  expect(sum((one) => one.acceptedTokens)).toBeGreaterThan(0);
  expect(sum((one) => one.draftedTokens - one.acceptedTokens)).toBeGreaterThan(0);
  expect(sum((one) => one.recomputedTokens)).toBeGreaterThan(0);
  for (const engine of engines) {
    expect(engine.stats().kvTokensUsed).toBe(0);
    engine.close();
  }
}

describe.skipIf(skipReason !== null)("sampling", () => {
  test("the draw key changes the response; the request id, the group and the batch do not", () => {
    const base = newRequest(0, { tokensMax: 24, temperature: 2 });
    const specs = [
      base,
      { ...base, requestId: requestId(1), groupId: groupId("another"), sampleIndex: 5 },
      { ...base, requestId: requestId(2), draw: drawKey(7, "g0", 5) },
      { ...base, requestId: requestId(3), draw: drawKey(7, "another", 0) },
      { ...base, requestId: requestId(4), draw: drawKey(8, "g0", 0) },
      { ...base, requestId: requestId(5), draw: drawKey(7 + 2 ** 40, "g0", 0) },
    ];
    const engine = newEngine({ slots: 6 });
    for (const spec of specs) engine.command(run(spec));
    const collector = runToEnd(engine);
    const texts = specs.map((spec) => collector.response(spec.requestId).tokens.join(" "));
    expect(texts[1]).toBe(texts[0] ?? "");
    expect(new Set(texts).size).toBe(5);
    engine.close();
  });

  test("temperature 0: the response does not depend on the seed, and each logprob is the highest", () => {
    const greedy = newRequest(1, { temperature: 0, tokensMax: 24 });
    const { tokens, logprobs } = soloResponse(greedy);
    for (let seed = 0; seed < 3; seed += 1) {
      const { sampling } = greedy;
      const other = { ...greedy, sampling: { ...sampling, seed } };
      expect(soloResponse(other).tokens).toEqual(tokens);
      const drawn = newRequest(1, { seed, tokensMax: 1 });
      expect(soloResponse(drawn).logprobs[0]).toBeLessThanOrEqual(logprobs[0] ?? -1);
    }
  });

  test("a response ends with its first stop token, also inside an accepted draft", () => {
    const free = newRequest(3, { stopTokenIds: [] });
    const { tokens } = soloResponse(free);
    const stop = tokens[7] ?? -1;
    const spec = newRequest(3, { stopTokenIds: [stop] });
    const drafter = new ScriptedDrafter(
      () => tokens,
      (view) => pathDraft(view, 20),
    );
    const planner = new FixedPlanner(20);
    const engine = newEngine({ speculation: { drafter, planner } });
    register(engine, [spec]);
    engine.command(run(spec));
    const response = runToEnd(engine).response(spec.requestId);
    expect(response.tokens).toEqual(tokens.slice(0, tokens.indexOf(stop) + 1));
    expect(response.finish).toBe("stop");
    expect(engine.stats().steps).toBe(2);
    expect(engine.stats().kvTokensUsed).toBe(0);
    engine.close();
  });
});

describe.skipIf(skipReason !== null)("the port", () => {
  test("a chunk gives exactly its tokens, parks the KV, and resumes without prefill", () => {
    const spec = newRequest(0);
    const engine = newEngine();
    const collector = new Collector();
    engine.command(run(spec, { chunkTokens: 9 }));
    runToEnd(engine, collector);
    expect(collector.response(0).tokens.length).toBe(9);
    expect(collector.response(0).finish).toBe(null);
    const { prefillTokens, kvTokensUsed } = engine.stats();
    // The last token has been drawn and not computed.
    expect(kvTokensUsed).toBe(spec.prompt.length + 8);
    engine.command(run(spec, { output: collector.output(0) }));
    runToEnd(engine, collector);
    expect(engine.stats().prefillTokens).toBe(prefillTokens);
    expect(engine.stats().recomputedTokens).toBe(0);
    expectSolo(collector, spec);
    engine.close();
  });

  test("drafts never carry a chunk beyond its tokens", () => {
    const spec = newRequest(0);
    const drafter = drafterFor([spec], (view) => pathDraft(view, 30));
    const engine = newEngine({ speculation: { drafter, planner: new FixedPlanner() } });
    register(engine, [spec]);
    engine.command(run(spec, { chunkTokens: 10 }));
    expect(runToEnd(engine).response(0).tokens.length).toBe(10);
    expect(engine.stats().acceptedTokens).toBeGreaterThan(5);
    engine.close();
  });

  test("export of what runs undivided, or is not there, hands out nothing and disturbs nothing", () => {
    const spec = { ...newRequest(0), divisible: false };
    const engine = newEngine();
    engine.command(run(spec));
    engine.step();
    engine.command({ kind: "export", requestId: requestId(0) });
    engine.command({ kind: "export", requestId: requestId(77) });
    const collector = runToEnd(engine);
    expect([...collector.exported]).toEqual([
      [0, null],
      [77, null],
    ]);
    expectSolo(collector, spec);
    engine.close();
  });

  test("reload: the old epoch's requests, KV and drafts are gone, and its blobs are refused", () => {
    const spec = newRequest(0);
    const drafter = drafterFor([spec], (view) => pathDraft(view, 3));
    const engine = newEngine({ speculation: { drafter, planner: new FixedPlanner() } });
    register(engine, [spec]);
    const before = new Collector();
    engine.command(run(spec, { chunkTokens: 8 }));
    runToEnd(engine, before);
    engine.command({ kind: "export", requestId: requestId(0) });
    before.take(engine.drain());
    engine.command(run(newRequest(1)));
    engine.step();
    const weights = LlamaWeights.load(OTHER_MODEL_PATH);
    engine.reload(weights, weightEpoch(1));
    expect(engine.drain()).toEqual([{ kind: "advanced", epoch: weightEpoch(1) }]);
    expect(engine.epoch).toBe(weightEpoch(1));
    expect(engine.step()).toBe(false);
    expect(drafter.has(spec.groupId)).toBe(false);
    const kv = before.exported.get(0) ?? null;
    engine.command(run(spec, { output: before.output(0), kv }));
    runToEnd(engine, before);
    expect(engine.stats()).toMatchObject({ kvLoads: 0, kvLoadFailures: 1 });
    expect(before.response(0).finish).not.toBe(null);
    engine.close();
    weights.free();
  });
});

describe.skipIf(skipReason !== null)("the KV budget", () => {
  test("the youngest running request is preempted first and runs again before later ones", () => {
    const specs = requests(5);
    const engine = newEngine({ slots: 4, kvTokens: 120 });
    const collector = new Collector();
    for (const spec of specs) engine.command(run(spec));
    runToEnd(engine, collector);
    const order = collector.others.flatMap((event) =>
      event.kind === "preempted" ? [event.requestId as number] : [],
    );
    expect(order[0]).toBe(3);
    const ended = collector.others.flatMap((event) =>
      event.kind === "chunk_done" ? [event.requestId as number] : [],
    );
    expect(ended.indexOf(3)).toBeLessThan(ended.indexOf(4));
    expect(order.length).toBe(engine.stats().preemptions);
    engine.close();
  });

  test("parked KV is dropped before anybody is preempted, the longest parked first", () => {
    const engine = newEngine({ slots: 4, kvTokens: 110 });
    const collector = new Collector();
    for (const id of [0, 1, 2]) {
      engine.command(run(newRequest(id), { chunkTokens: 3 }));
      runToEnd(engine, collector);
    }
    engine.command(run(newRequest(3, { stopTokenIds: [] })));
    engine.command(run(newRequest(4, { stopTokenIds: [] })));
    runToEnd(engine, collector);
    const told = collector.others.flatMap((event) =>
      event.kind === "evicted" || event.kind === "preempted" ? [event.kind, event.requestId] : [],
    );
    expect(told.slice(0, 6) as unknown[]).toEqual(["evicted", 0, "evicted", 1, "evicted", 2]);
    expect(told).toContain("preempted");
    engine.close();
  });

  test("drafts take only room that is left: none is preempted for them", () => {
    const specs = requests(2);
    const drafter = drafterFor(specs, (view) => pathDraft(view, 2));
    const planner = new FixedPlanner(8);
    const kvTokens = Math.max(...specs.map((spec) => spec.prompt.length)) + 52;
    const engine = newEngine({ slots: 1, kvTokens, speculation: { drafter, planner } });
    register(engine, specs);
    for (const spec of specs) engine.command(run(spec));
    expectSolo(runToEnd(engine), ...specs);
    expect(engine.stats().preemptions).toBe(0);
    expect(engine.stats().draftedTokens).toBeGreaterThan(0);
    engine.close();
  });
});

test.skipIf(skipReason !== null)(
  "moved KV: a damaged blob is refused and recomputed, without effect on the response",
  () => {
    const [from, to] = [newEngine(), newEngine()];
    const collector = new Collector();
    from.command(run(newRequest(0), { chunkTokens: 12 }));
    runToEnd(from, collector);
    from.command({ kind: "export", requestId: requestId(0) });
    collector.take(from.drain());
    expect(from.stats().kvTokensUsed).toBe(0);
    const kv = collector.exported.get(0);
    if (!kv) throw new Error("nothing was exported");
    const view = new Uint8Array(kv.bytes);
    view[view.length >> 1] = (view[view.length >> 1] ?? 0) ^ 16;
    to.command(run(newRequest(0), { output: collector.output(0), kv }));
    runToEnd(to, collector);
    expectSolo(collector, newRequest(0));
    expect(to.stats()).toMatchObject({
      kvLoads: 0,
      kvLoadFailures: 1,
      recomputedTokens: kv.tokens,
    });
    for (const engine of [from, to]) engine.close();
  },
);
