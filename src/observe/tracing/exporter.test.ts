// The exporter against a collector over real HTTP: what arrives, and what a collector costs that is slow, refuses, or is
// not there. Pauses are skipped.

import { afterEach, beforeEach, expect, test } from "bun:test";
import { Collector } from "../../../test/suite/otlp.ts";
import { newSpanId } from "./context.ts";
import { QUEUE_MAX, SpanExporter } from "./exporter.ts";
import { KIND, span } from "./span.ts";

const TRACE = "4bf92f3577b34da6a3ce929d0e0e4736";
let collector: Collector;
let exporters: SpanExporter[] = [];

beforeEach(() => {
  collector = new Collector();
  exporters = [];
});

afterEach(async () => {
  await Promise.all(exporters.map((exporter) => exporter.close()));
  await collector.stop();
});

function exporterTo(url = collector.url, timeoutMs = 5000) {
  const pauses: number[] = [];
  const problems: (string | null)[] = [];
  const exporter = new SpanExporter({
    ...{ url: `${url}/v1/traces`, headers: { "x-key": "secret" }, timeoutMs },
    ...{ resource: { "service.name": "test" }, scope: { name: "foretoken", version: "1" } },
    later: (act, ms) => {
      pauses.push(ms);
      const timer = setTimeout(act, Math.min(ms, 5));
      return () => clearTimeout(timer);
    },
    changed: (problem) => problems.push(problem),
  });
  exporters.push(exporter);
  return { exporter, pauses, problems };
}

const spanNamed = (name: string) =>
  span({
    ...{ traceId: TRACE, spanId: newSpanId(), parentId: null, name, kind: KIND.internal },
    ...{ startMs: 1_700_000_000_000.25, endMs: 1_700_000_000_001, error: null },
    attributes: { text: "a", whole: 3, part: 0.5, flag: true, list: ["x"], none: null },
  });

async function until(isTrue: () => boolean): Promise<void> {
  const endMs = performance.now() + 10_000;
  while (!isTrue()) {
    if (performance.now() > endMs) throw new Error("not within 10 s");
    await Bun.sleep(2);
  }
}

test("exporter: every span arrives once, in OTLP's JSON, with the resource and the headers", async () => {
  const { exporter, problems } = exporterTo();
  for (let i = 0; i < 2500; i += 1) exporter.add(spanNamed(`s${i}`));
  await until(() => exporter.figures.sent === 2500);
  expect(collector.problems).toEqual([]);
  expect(new Set(collector.spans.map(({ name }) => name)).size).toBe(2500);
  expect(collector.spans.length).toBe(2500);
  expect(collector.resources[0]).toEqual({ "service.name": "test" });
  expect(collector.headers[0]?.get("x-key")).toBe("secret");
  expect(collector.spans[0]).toMatchObject({
    startTimeUnixNano: "1700000000000250000",
    endTimeUnixNano: "1700000000001000000",
    attributes: { text: "a", whole: 3, part: 0.5, flag: true, list: ["x"] },
  });
  expect([exporter.figures, problems]).toEqual([{ queued: 0, sent: 2500, dropped: 0 }, []]);
});

test("exporter: a collector that is not there costs a bounded queue and a count, and one report", async () => {
  const { url } = collector;
  await collector.stop();
  const { exporter, pauses, problems } = exporterTo(url);
  for (let i = 0; i < QUEUE_MAX + 100; i += 1) exporter.add(spanNamed("s"));
  expect(exporter.figures).toEqual({ queued: QUEUE_MAX, sent: 0, dropped: 100 });
  await until(() => exporter.figures.dropped > 100);
  expect(pauses.filter((ms) => ms > 1000)).toEqual([2000, 4000, 8000]);
  expect(problems.length).toBe(1);
  expect(exporter.figures.queued).toBeLessThanOrEqual(QUEUE_MAX);
  await exporter.close();
  expect(exporter.figures).toEqual({ queued: 0, sent: 0, dropped: QUEUE_MAX + 100 });
});

test("exporter: 503 is tried again without a repeat, 400 is not, and the recovery is reported", async () => {
  const { exporter, problems, pauses } = exporterTo();
  collector.answers.push(
    new Response("busy", { status: 503, headers: { "retry-after": "7" } }),
    new Response("busy", { status: 429 }),
  );
  exporter.add(spanNamed("kept"));
  await until(() => exporter.figures.sent === 1);
  expect(pauses).toContain(7000);
  expect(problems).toEqual(["it answers 503: busy", null]);
  collector.answers.push(new Response("what is that", { status: 400 }));
  exporter.add(spanNamed("refused"));
  await until(() => exporter.figures.dropped === 1);
  expect(problems.at(-1)).toBe("it answers 400: what is that");
  collector.answers.push(
    Response.json({ partialSuccess: { rejectedSpans: "1", errorMessage: "too old" } }),
  );
  exporter.add(spanNamed("old"));
  await until(() => exporter.figures.dropped === 2);
  exporter.add(spanNamed("last"));
  await until(() => exporter.figures.sent === 2);
  expect(problems.at(-1)).toBeNull();
  expect(collector.spans.map(({ name }) => name)).toEqual(["kept", "old", "last"]);
});

test("exporter: a collector that never answers holds nobody up, at the end either", async () => {
  const deaf = Bun.serve({ port: 0, hostname: "127.0.0.1", fetch: () => new Promise(() => {}) });
  const { exporter } = exporterTo(deaf.url.origin, 60_000);
  exporter.add(spanNamed("a"));
  await until(() => exporter.figures.queued === 1);
  await Bun.sleep(20);
  const startMs = performance.now();
  await exporter.close();
  expect(performance.now() - startMs).toBeLessThan(30_000);
  expect(exporter.figures).toEqual({ queued: 0, sent: 0, dropped: 1 });
  await deaf.stop(true);
});
