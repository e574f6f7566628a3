// What of the sidecar becomes spans: the trace of each request is decided when it joins, its spans are made when it has
// finished. Without a collector nothing observes anything.

import { wallClock } from "./app.ts";
import type { Request } from "./core/request/buffer.ts";
import { contextOf, type TraceContext } from "./observe/tracing/context.ts";
import { SpanExporter } from "./observe/tracing/exporter.ts";
import { requestSpans } from "./observe/tracing/request-spans.ts";
import type { TracingSettings } from "./observe/tracing/settings.ts";
import type { GenerationSpec, Sidecar } from "./server/sidecar.ts";
import type { WorkerPool } from "./server/worker-pool.ts";

interface Traced {
  readonly context: TraceContext;
  readonly spec: GenerationSpec;
}

export function tracedBy(
  sidecar: Sidecar,
  parts: {
    readonly settings: TracingSettings;
    readonly pool: WorkerPool;
    readonly modelName: string;
    readonly version: string;
    readonly later: (act: () => void, ms: number) => () => void;
    readonly changed: (problem: string | null) => void;
  },
): SpanExporter {
  const { settings, pool, modelName, version } = parts;
  const exporter = new SpanExporter({
    ...{ url: settings.url, headers: settings.headers, timeoutMs: settings.timeoutMs },
    ...{ later: parts.later, changed: parts.changed, scope: { name: "foretoken", version } },
    resource: {
      "service.version": version,
      "service.instance.id": crypto.randomUUID(),
      "process.pid": process.pid,
      ...settings.resource,
      "service.name": settings.serviceName,
    },
  });
  const nameOf = (worker: number) =>
    pool.members.find(({ workerId }) => workerId === worker)?.source.name ?? `worker ${worker}`;
  const traced = new Map<Request, Traced>();
  // Responses to one prompt of one call are one trace; they join one after the other.
  let last: Traced | null = null;
  sidecar.observe({
    joined: (request, spec) => {
      if (last?.spec !== spec) {
        last = { spec, context: contextOf(spec.caller?.traceparent ?? null, settings.sampler) };
      }
      if (last.context.isSampled) traced.set(request, last);
    },
    finished: (request) => {
      const of = traced.get(request);
      if (of === undefined) return;
      traced.delete(request);
      const { context, spec } = of;
      const spans = requestSpans(request, {
        ...{ context, modelName, nameOf },
        route: spec.caller?.route ?? null,
        session: spec.session ?? null,
        choices: spec.n,
        originMs: Date.now() - wallClock.nowMs(),
      });
      for (const span of spans) exporter.add(span);
    },
  });
  return exporter;
}
