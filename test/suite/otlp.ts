// A collector of traces for tests: takes POST /v1/traces and holds each body to the schema of OTLP in JSON
// (opentelemetry-proto 1.x, trace/v1), strictly: unknown fields, ids in base64 and numbers for 64-bit fields are errors.

import * as v from "valibot";

const nanos = v.pipe(v.string(), v.regex(/^\d{16,19}$/));
const spanId = v.pipe(v.string(), v.regex(/^(?!0{16})[0-9a-f]{16}$/));

const scalar = v.union([
  v.strictObject({ stringValue: v.string() }),
  v.strictObject({ intValue: v.pipe(v.string(), v.regex(/^-?\d+$/)) }),
  v.strictObject({ doubleValue: v.pipe(v.number(), v.finite()) }),
  v.strictObject({ boolValue: v.boolean() }),
]);
const value = v.union([
  scalar,
  v.strictObject({ arrayValue: v.strictObject({ values: v.array(scalar) }) }),
]);
const attributes = v.array(v.strictObject({ key: v.pipe(v.string(), v.minLength(1)), value }));

const span = v.strictObject({
  traceId: v.pipe(v.string(), v.regex(/^(?!0{32})[0-9a-f]{32}$/)),
  spanId,
  parentSpanId: v.optional(spanId),
  flags: v.pipe(v.number(), v.integer(), v.minValue(0)),
  name: v.pipe(v.string(), v.minLength(1)),
  kind: v.picklist([1, 2, 3, 4, 5]),
  startTimeUnixNano: nanos,
  endTimeUnixNano: nanos,
  attributes,
  status: v.optional(
    v.strictObject({ code: v.picklist([0, 1, 2]), message: v.optional(v.string()) }),
  ),
});

const body = v.strictObject({
  resourceSpans: v.array(
    v.strictObject({
      resource: v.strictObject({ attributes }),
      scopeSpans: v.array(
        v.strictObject({
          scope: v.strictObject({ name: v.string(), version: v.string() }),
          spans: v.array(span),
        }),
      ),
    }),
  ),
});

export interface CollectedSpan extends Omit<v.InferOutput<typeof span>, "attributes"> {
  readonly attributes: Readonly<Record<string, unknown>>;
}

export class Collector {
  readonly #server: ReturnType<typeof Bun.serve>;
  readonly spans: CollectedSpan[] = [];
  readonly resources: Readonly<Record<string, unknown>>[] = [];
  readonly headers: Headers[] = [];
  /** Bodies that are no OTLP, and why. */
  readonly problems: string[] = [];
  /** The next answers; then 200. */
  readonly answers: Response[] = [];
  bodies = 0;

  constructor() {
    this.#server = Bun.serve({
      port: 0,
      hostname: "127.0.0.1",
      fetch: async (request) => {
        if (new URL(request.url).pathname !== "/v1/traces")
          return new Response("", { status: 404 });
        const text = await request.text();
        this.bodies += 1;
        this.headers.push(request.headers);
        const answer = this.answers.shift();
        if (answer !== undefined && !answer.ok) return answer;
        this.#take(text);
        return answer ?? Response.json({ partialSuccess: {} });
      },
    });
  }

  get url(): string {
    return this.#server.url.origin;
  }

  #take(text: string): void {
    const parsed = v.safeParse(body, JSON.parse(text));
    if (!parsed.success) {
      this.problems.push(`${parsed.issues[0].message} at ${v.getDotPath(parsed.issues[0])}`);
      return;
    }
    for (const { resource, scopeSpans } of parsed.output.resourceSpans) {
      this.resources.push(plain(resource.attributes));
      for (const one of scopeSpans.flatMap(({ spans }) => spans)) {
        this.spans.push({ ...one, attributes: plain(one.attributes) });
      }
    }
  }

  async stop(): Promise<void> {
    await this.#server.stop(true);
  }
}

function plain(all: v.InferOutput<typeof attributes>): Record<string, unknown> {
  return Object.fromEntries(all.map(({ key, value: typed }) => [key, plainValue(typed)]));
}

function plainValue(typed: v.InferOutput<typeof value>): unknown {
  if ("arrayValue" in typed) return typed.arrayValue.values.map(plainValue);
  if ("intValue" in typed) return Number(typed.intValue);
  return Object.values(typed)[0];
}
