// A span in the JSON of OTLP 1.x (opentelemetry-proto, trace/v1): ids in hexadecimal, 64-bit numbers as text.

/** The values of attributes. */
export type Value = string | number | boolean | readonly string[];

type AnyValue =
  | { readonly stringValue: string }
  | { readonly intValue: string }
  | { readonly doubleValue: number }
  | { readonly boolValue: boolean }
  | { readonly arrayValue: { readonly values: readonly AnyValue[] } };

export interface KeyValue {
  readonly key: string;
  readonly value: AnyValue;
}

export const KIND = { internal: 1, server: 2 } as const;
const STATUS_ERROR = 2;

export interface Span {
  readonly traceId: string;
  readonly spanId: string;
  readonly parentSpanId?: string;
  readonly flags: number;
  readonly name: string;
  readonly kind: number;
  readonly startTimeUnixNano: string;
  readonly endTimeUnixNano: string;
  readonly attributes: readonly KeyValue[];
  readonly status?: { readonly code: number; readonly message?: string };
}

/** Times in milliseconds of the Unix clock. */
export function span(about: {
  readonly traceId: string;
  readonly spanId: string;
  readonly parentId: string | null;
  readonly name: string;
  readonly kind: number;
  readonly startMs: number;
  readonly endMs: number;
  readonly attributes: Readonly<Record<string, Value | null | undefined>>;
  /** null: it did not fail. */
  readonly error: string | null;
}): Span {
  const { traceId, spanId, parentId, name, kind, error } = about;
  return {
    ...{ traceId, spanId, ...(parentId !== null && { parentSpanId: parentId }) },
    ...{ flags: SAMPLED, name, kind },
    startTimeUnixNano: nanos(about.startMs),
    endTimeUnixNano: nanos(Math.max(about.startMs, about.endMs)),
    attributes: keyValues(about.attributes),
    ...(error !== null && { status: { code: STATUS_ERROR, message: error } }),
  };
}

/** As in the flags of a traceparent. */
export const SAMPLED = 1;

/** A double has microseconds of Unix time, but not nanoseconds. */
function nanos(ms: number): string {
  return `${Math.round(ms * 1000)}000`;
}

/** null and undefined are left out. */
export function keyValues(
  attributes: Readonly<Record<string, Value | null | undefined>>,
): KeyValue[] {
  return Object.entries(attributes).flatMap(([key, value]) =>
    value === null || value === undefined ? [] : [{ key, value: anyValue(value) }],
  );
}

function anyValue(value: Value): AnyValue {
  if (typeof value === "string") return { stringValue: value };
  if (typeof value === "boolean") return { boolValue: value };
  if (typeof value !== "number") return { arrayValue: { values: value.map(anyValue) } };
  return Number.isSafeInteger(value) ? { intValue: String(value) } : { doubleValue: value };
}
