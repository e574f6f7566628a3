// Traces of a real sidecar on embedded engines, as a collector gets them over HTTP.

import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { Victim } from "../adversary/edge-bed.ts";
import { type CollectedSpan, Collector } from "../suite/otlp.ts";
import { engineMissing } from "./tool.ts";

const TRACE = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT = "00f067aa0ba902b7";
const PROMPT = "<|user|>total 6 2 6 4<|assistant|>";

describe.skipIf(engineMissing() !== null)("traces", () => {
  let collector: Collector;
  let victim: Victim;

  beforeAll(async () => {
    collector = new Collector();
    victim = await Victim.start("--chunk-tokens", "16", "--otlp", collector.url);
  }, 180_000);

  afterAll(async () => {
    await victim?.stop();
    await collector?.stop();
  });

  const post = async (path: string, body: object, headers: Record<string, string> = {}) => {
    const answer = await fetch(new URL(path, victim.url), {
      method: "POST",
      headers: { "content-type": "application/json", ...headers },
      body: JSON.stringify(body),
    });
    expect(answer.status).toBe(200);
    return await answer.text();
  };

  const requestsOf = async (count: number, isOurs: (span: CollectedSpan) => boolean) => {
    const endMs = performance.now() + 20_000;
    for (;;) {
      const found = collector.spans.filter((span) => span.kind === 2 && isOurs(span));
      if (found.length >= count || performance.now() > endMs) return found;
      await Bun.sleep(50);
    }
  };

  test("a client's trace is continued: its requests, and their chunks below them", async () => {
    const traceparent = `00-${TRACE}-${PARENT}-01`;
    const sampling = { max_tokens: 40, temperature: 0.7, ignore_eos: true };
    await post("/v1/completions", { prompt: PROMPT, n: 3, ...sampling }, { traceparent });
    const requests = await requestsOf(3, ({ traceId }) => traceId === TRACE);
    expect(collector.problems).toEqual([]);
    expect(requests.map(({ parentSpanId }) => parentSpanId)).toEqual([PARENT, PARENT, PARENT]);
    for (const { spanId, attributes, startTimeUnixNano, endTimeUnixNano, name } of requests) {
      expect(name).toStartWith("text_completion ");
      expect(attributes).toMatchObject({
        "gen_ai.operation.name": "text_completion",
        "gen_ai.request.max_tokens": 40,
        "gen_ai.request.temperature": 0.7,
        "gen_ai.request.choice.count": 3,
        "gen_ai.usage.output_tokens": 40,
        "gen_ai.response.finish_reasons": ["length"],
        "http.route": "/v1/completions",
        "foretoken.chunks": 3,
      });
      const chunks = collector.spans.filter(({ parentSpanId }) => parentSpanId === spanId);
      const tokens = chunks.map((chunk) => chunk.attributes["foretoken.chunk.tokens"]);
      expect(tokens).toEqual([16, 16, 8]);
      expect(chunks.map((chunk) => chunk.attributes["foretoken.chunk.end"])).toEqual([
        ...["used_up", "used_up", "length"],
      ]);
      for (const chunk of chunks) {
        expect(chunk.traceId).toBe(TRACE);
        expect(chunk.attributes["foretoken.worker"]).toContain("embedded engine");
        expect(chunk.attributes["foretoken.drafted_tokens"]).toBeGreaterThanOrEqual(0);
        expect(BigInt(chunk.startTimeUnixNano)).toBeGreaterThanOrEqual(BigInt(startTimeUnixNano));
        expect(BigInt(chunk.endTimeUnixNano)).toBeLessThanOrEqual(BigInt(endTimeUnixNano));
      }
      // Of now, by the Unix clock.
      expect(Math.abs(Number(endTimeUnixNano) / 1e6 - Date.now())).toBeLessThan(60_000);
    }
  });

  test("without one, responses to a prompt share a trace of their own; an unsampled one is not recorded", async () => {
    const groups = ["a", "b"].map((id) => ({ id, prompt: `${PROMPT} ${id}` }));
    const off = { traceparent: `00-${TRACE.replaceAll("4", "5")}-${PARENT}-00` };
    await post("/v1/completions", { prompt: PROMPT, max_tokens: 4 }, off);
    await post("/v1/rollouts", { groups, n: 2, sampling: { max_tokens: 20 } });
    const route = ({ attributes }: CollectedSpan) => attributes["http.route"] === "/v1/rollouts";
    const requests = await requestsOf(4, route);
    const traces = new Map<unknown, Set<string>>();
    for (const { attributes, traceId, parentSpanId } of requests) {
      expect(parentSpanId).toBeUndefined();
      const group = attributes["foretoken.group"];
      traces.set(group, (traces.get(group) ?? new Set()).add(traceId));
    }
    expect([...traces.values()].map(({ size }) => size)).toEqual([1, 1]);
    expect(new Set([...traces.values()].flatMap((ids) => [...ids])).size).toBe(2);
    expect(collector.spans.filter(({ traceId }) => traceId.startsWith("5bf9"))).toEqual([]);
    const metrics = await (await fetch(new URL("/metrics", victim.url))).text();
    expect(metrics).toContain('foretoken_trace_spans_total{result="dropped"');
    expect(collector.resources[0]).toMatchObject({ "service.name": "foretoken" });
  });
});
