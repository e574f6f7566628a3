// Every route of the sidecar, and the draft service behind /v1/draft.

import { ADAPTER_CONTROL, ADAPTER_DATA } from "./adapters/list.ts";
import { randomWord, wallClock } from "./app.ts";
import type { HeldWeights } from "./core/journal/held-weights.ts";
import { FEATURE_ROUTES } from "./features.ts";
import type { RunJournals } from "./host/journal-file.ts";
import type { Timers } from "./host/timers.ts";
import { type KeptLevels, METRICS_ROUTES } from "./metered.ts";
import type { Metrics } from "./observe/metrics/metrics.ts";
import type { WorkerPool } from "./pool/pool.ts";
import type { ServeOptions } from "./serve-options.ts";
import type { LearnedEpochs } from "./server/control/learned-epochs.ts";
import { logged } from "./server/control/logged.ts";
import { CONTROL_ROUTES, controlRoutes } from "./server/control/routes.ts";
import type { WeightUpdates } from "./server/control/weights.ts";
import { confined } from "./server/control/weights-roots.ts";
import type { EngineCalls } from "./server/engine-calls.ts";
import { DATA_ROUTES, dataPlane } from "./server/openai/data-plane.ts";
import { RequestJournals } from "./server/openai/request-journals.ts";
import { OPENAPI_ROUTE, openApiRoute } from "./server/openapi.ts";
import type { KnownRollouts } from "./server/rollouts/known.ts";
import { ROLLOUT_ROUTES, rolloutSide } from "./server/rollouts/routes.ts";
import { bound, type Route, type RouteInfo } from "./server/route.ts";
import type { Sidecar } from "./server/sidecar.ts";
import { WORKER_ROUTES, type WorkerRegistry } from "./server/worker-registry.ts";
import type { Encoder } from "./text/text.ts";

/** Every route of the server, as its row describes it. */
export function routeTable(): readonly RouteInfo[] {
  return [
    ...CONTROL_ROUTES,
    ...ADAPTER_CONTROL,
    ...WORKER_ROUTES,
    ...DATA_ROUTES,
    ...ADAPTER_DATA,
    ...ROLLOUT_ROUTES,
    ...FEATURE_ROUTES,
    ...METRICS_ROUTES,
    OPENAPI_ROUTE,
  ];
}

/** Of a running sidecar, what its routes serve. */
export interface ServedParts {
  readonly sidecar: Sidecar;
  readonly encoder: Encoder;
  readonly engines: EngineCalls;
  readonly pool: WorkerPool;
  readonly registry: WorkerRegistry;
  readonly weights: WeightUpdates;
  readonly learned: LearnedEpochs;
  readonly metrics: Metrics;
  readonly kept: KeptLevels;
  readonly journals: RunJournals | null;
  readonly timers: Timers;
  /** Of features. */
  readonly more: readonly Route[];
}

/** Every route, and the document that describes them all. */
export function routesOf(
  options: ServeOptions,
  parts: ServedParts,
): {
  routes: Route[];
  rollouts: KnownRollouts;
  requestJournals: RequestJournals | null;
} {
  const { sidecar, encoder, engines, pool, registry, weights, learned, metrics, kept } = parts;
  const { text, names, eosTokenIds } = options.model;
  const { version } = options;
  const { afterwards } = parts.timers;
  const after = (ms: number, run: () => void) => afterwards(run, ms);
  const held = (): HeldWeights => {
    const { epoch } = sidecar.rollout;
    return { epoch, version: weights.version(epoch), ...pool.held };
  };
  const graceMs = options.retryGraceMs;
  const requestJournals =
    parts.journals && new RequestJournals({ files: parts.journals, sidecar, held, graceMs, after });
  const { journals } = parts;
  if (journals !== null) sidecar.observe({ advanced: () => journals.weights.write(held()) });
  const plane = dataPlane({
    dialects: ADAPTER_DATA,
    journals: requestJournals,
    sidecar,
    text,
    encoder,
    modelNames: names,
    adapters: () => weights.adapters,
    engines,
    hasText: options.model.openTextThread !== null,
    eosTokenIds,
    version: (epoch) => weights.version(epoch),
    expected: (hint) => learned.requested(hint),
    limits: { graceMs },
    failed: options.events.failed,
    after,
  });
  const rollouts = rolloutSide({
    ...{ sidecar, text, encoder, eosTokenIds, clock: wallClock, random: randomWord },
    adapterOf: plane.adapterOf,
    versionOf: (epoch) => weights.version(epoch),
    files: parts.journals,
    held: () => pool.held,
    after,
  });
  kept.requests = plane.kept;
  kept.rollouts = rollouts.kept;
  const routes = [
    ...logged(
      confined(
        controlRoutes(
          {
            sidecar,
            pool,
            weights,
            learned,
            modelName: names[0],
            version,
            abortRequests: plane.abort,
            timeoutMs: options.weightsTimeoutMs,
            later: afterwards,
          },
          ADAPTER_CONTROL,
        ),
        options.weightsRoots ?? null,
      ),
      (entry) => options.events.controlled(entry),
    ),
    ...logged(registry.routes(), (entry) => options.events.controlled(entry)),
    ...plane.routes,
    ...rollouts.routes,
    ...bound(METRICS_ROUTES, metrics),
    ...parts.more,
  ];
  const all = [...routes, openApiRoute(routes, version)];
  return { routes: all, rollouts: rollouts.known, requestJournals };
}
