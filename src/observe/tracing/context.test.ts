import { expect, test } from "bun:test";
import { contextOf, newSpanId, parseTraceparent, samplerNamed } from "./context.ts";
import { tracingSettings } from "./settings.ts";

const TRACE = "4bf92f3577b34da6a3ce929d0e0e4736";
const SPAN = "00f067aa0ba902b7";

test("traceparent: a valid one is continued, and any other is ignored", () => {
  const parent = { traceId: TRACE, parentId: SPAN, isSampled: true };
  expect(parseTraceparent(`00-${TRACE}-${SPAN}-01`)).toEqual(parent);
  expect(parseTraceparent(`00-${TRACE}-${SPAN}-00`)).toEqual({ ...parent, isSampled: false });
  // A later version may have more fields.
  expect(parseTraceparent(`cc-${TRACE}-${SPAN}-01-what`)).toEqual(parent);
  const wrong = [
    ...["", "00", `00-${TRACE}-${SPAN}`, `00-${TRACE}-${SPAN}-01-more`, `ff-${TRACE}-${SPAN}-01`],
    ...[`00-${"0".repeat(32)}-${SPAN}-01`, `00-${TRACE}-${"0".repeat(16)}-01`],
    ...[
      `00-${TRACE.toUpperCase()}-${SPAN}-01`,
      `00-${TRACE}1-${SPAN}-01`,
      ` 00-${TRACE}-${SPAN}-01`,
    ],
  ];
  for (const text of wrong) expect([text, parseTraceparent(text)]).toEqual([text, null]);
  const fresh = contextOf("00-nonsense", () => true);
  expect(fresh.parentId).toBeNull();
  expect(fresh.traceId).toMatch(/^[0-9a-f]{32}$/);
  expect(newSpanId()).toMatch(/^[0-9a-f]{16}$/);
});

test("samplers: as OpenTelemetry names them", () => {
  const [yes, no] = [{ isSampled: true }, { isSampled: false }];
  const decisions = (name: string) =>
    [yes, no, null].map((parent) => samplerNamed(name, 0)?.(TRACE, parent));
  expect(decisions("always_on")).toEqual([true, true, true]);
  expect(decisions("always_off")).toEqual([false, false, false]);
  expect(decisions("parentbased_always_on")).toEqual([true, false, true]);
  expect(decisions("parentbased_traceidratio")).toEqual([true, false, false]);
  expect(samplerNamed("some", 1)).toBeNull();
  const tenth = samplerNamed("traceidratio", 0.1);
  let kept = 0;
  for (let i = 0; i < 10_000; i += 1)
    kept += Number(tenth?.(contextOf(null, () => true).traceId, null));
  // Five standard deviations.
  expect(Math.abs(kept - 1000)).toBeLessThan(150);
});

test("settings: the flag goes before the environment, a base URL gets the path", () => {
  const url = (flag: string | null, env: Record<string, string> = {}) =>
    tracingSettings(flag, env)?.url ?? null;
  expect(url(null)).toBeNull();
  expect(url("http://c:4318")).toBe("http://c:4318/v1/traces");
  expect(url("http://c:4318/v1/traces")).toBe("http://c:4318/v1/traces");
  expect(url(null, { OTEL_EXPORTER_OTLP_ENDPOINT: "https://c/otlp/" })).toBe(
    "https://c/otlp/v1/traces",
  );
  expect(url(null, { OTEL_EXPORTER_OTLP_TRACES_ENDPOINT: "http://c/x" })).toBe("http://c/x");
  const base = { OTEL_EXPORTER_OTLP_ENDPOINT: "http://env:4318" };
  expect(url("http://flag:1", base)).toBe("http://flag:1/v1/traces");
  expect(url(null, { ...base, OTEL_SDK_DISABLED: "true" })).toBeNull();
  expect(url(null, { ...base, OTEL_TRACES_EXPORTER: "none" })).toBeNull();
  expect(url(null, { ...base, OTEL_EXPORTER_OTLP_PROTOCOL: "grpc" })).toBeNull();
  expect(url(null, { OTEL_EXPORTER_OTLP_ENDPOINT: "" })).toBeNull();
});

test("settings: headers, names and shares are read, and what is wrong is named", () => {
  const base = { OTEL_EXPORTER_OTLP_ENDPOINT: "http://env:4318" };
  const read = (env: Record<string, string>) => tracingSettings(null, { ...base, ...env });
  expect(read({ OTEL_EXPORTER_OTLP_HEADERS: "api-key=a%20b, x=1=2" })?.headers).toEqual({
    "api-key": "a b",
    x: "1=2",
  });
  expect(read({ OTEL_SERVICE_NAME: "rl" })?.serviceName).toBe("rl");
  expect(read({ OTEL_RESOURCE_ATTRIBUTES: "service.name=a,run=7" })).toMatchObject({
    serviceName: "a",
    resource: { run: "7" },
  });
  expect(() => tracingSettings("c:4318", {})).toThrow('--otlp is "c:4318"; it is the URL');
  expect(() => read({ OTEL_TRACES_SAMPLER: "all" })).toThrow("it is one of always_on, always_off");
  expect(() => read({ OTEL_TRACES_SAMPLER_ARG: "2" })).toThrow("between 0 and 1");
  expect(() => read({ OTEL_EXPORTER_OTLP_TIMEOUT: "soon" })).toThrow("milliseconds");
  expect(() => read({ OTEL_EXPORTER_OTLP_HEADERS: "novalue" })).toThrow("list of key=value");
});
