// Which trace a request belongs to, and whether it is recorded: the caller's `traceparent` (W3C Trace Context) where it
// sends one, else a trace of its own; and OpenTelemetry's samplers.

import { SAMPLED } from "./span.ts";

export interface TraceContext {
  readonly traceId: string;
  /** The caller's span; null: the request begins the trace. */
  readonly parentId: string | null;
  readonly isSampled: boolean;
}

/** Whether a trace is recorded. `parent` null: it begins here. */
export type Sampler = (traceId: string, parent: { readonly isSampled: boolean } | null) => boolean;

const ZERO = /^0+$/;
/** Later versions may append fields. */
const TRACEPARENT = /^([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?$/;
const HEX_PER_BYTE = 2;
const TRACE_ID_BYTES = 16;
const SPAN_ID_BYTES = 8;

/** null: it is none. */
export function parseTraceparent(text: string): (TraceContext & { parentId: string }) | null {
  const [, version, traceId = "", parentId = "", flags = "", more] = TRACEPARENT.exec(text) ?? [];
  if (version === undefined || version === "ff") return null;
  if (version === "00" && more !== undefined) return null;
  if (ZERO.test(traceId) || ZERO.test(parentId)) return null;
  return { traceId, parentId, isSampled: (Number.parseInt(flags, 16) & SAMPLED) === SAMPLED };
}

/** A malformed header is ignored, as the standard says. */
export function contextOf(traceparent: string | null, sampler: Sampler): TraceContext {
  const parent = traceparent === null ? null : parseTraceparent(traceparent);
  const traceId = parent?.traceId ?? newId(TRACE_ID_BYTES);
  return { traceId, parentId: parent?.parentId ?? null, isSampled: sampler(traceId, parent) };
}

export function newSpanId(): string {
  return newId(SPAN_ID_BYTES);
}

function newId(bytes: number): string {
  const id = crypto.getRandomValues(new Uint8Array(bytes)).toHex();
  return ZERO.test(id) ? `${id.slice(HEX_PER_BYTE)}01` : id;
}

/** By the last 56 bits of the trace's id, which the standard wants to be random: all services choose alike. */
function ratio(share: number): Sampler {
  return (traceId) => Number.parseInt(traceId.slice(-14), 16) < share * 2 ** 56;
}

const SAMPLERS: Readonly<Record<string, (share: number) => Sampler>> = {
  always_on: () => () => true,
  always_off: () => () => false,
  traceidratio: ratio,
  parentbased_always_on: () => (_, parent) => parent?.isSampled ?? true,
  parentbased_always_off: () => (_, parent) => parent?.isSampled ?? false,
  parentbased_traceidratio: (share) => (traceId, parent) =>
    parent?.isSampled ?? ratio(share)(traceId, parent),
};

export const SAMPLER_NAMES = Object.keys(SAMPLERS);

/** null: there is none of that name. */
export function samplerNamed(name: string, share: number): Sampler | null {
  return SAMPLERS[name]?.(share) ?? null;
}
