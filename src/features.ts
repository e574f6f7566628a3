// The features of the server beside its requests and weights: one row each, in the order in which they observe and
// close. A row says which routes it has, what it observes, what it keeps, and how it ends; serve.ts knows no more of it.

import type { IterationSummary } from "./core/rollout/iteration-span.ts";
import type { Timers } from "./host/timers.ts";
import type { Metrics } from "./observe/metrics/metrics.ts";
import type { WorkerPool } from "./pool/pool.ts";
import type { Drafts } from "./serve-drafts.ts";
import type { ServeEvents } from "./serve-options.ts";
import type { LearnedEpochs } from "./server/control/learned-epochs.ts";
import type { WeightUpdates } from "./server/control/weights.ts";
import { PLUGIN_ROUTES } from "./server/drafts/routes.ts";
import type { PromptHistory } from "./server/history/prompt-history.ts";
import { Iterations } from "./server/iterations.ts";
import type { Kept } from "./server/kept.ts";
import { LIVE_ROUTES } from "./server/live/routes.ts";
import type { LiveView } from "./server/live/view.ts";
import { PAGE_ROUTE } from "./server/page/routes.ts";
import { bound, type Route, type RouteInfo } from "./server/route.ts";
import type { Sidecar, SidecarObserver } from "./server/sidecar.ts";
import type { StreamService } from "./server/stream/service.ts";
import type { Text } from "./text/text.ts";

export interface Feature {
  readonly routes?: readonly Route[];
  readonly observer?: SidecarObserver;
  /** By kind, what it keeps of work that is done: /metrics shows it. */
  readonly kept?: Readonly<Record<string, () => Kept>>;
  /** All requests have ended, and no new one comes. */
  readonly drained?: () => void;
  /** The server stops: before the rollout does. */
  readonly close?: () => void;
}

export interface FeatureParts {
  readonly sidecar: Sidecar;
  readonly pool: WorkerPool;
  readonly weights: WeightUpdates;
  readonly learned: LearnedEpochs;
  readonly stream: StreamService;
  readonly drafts: Drafts;
  readonly live: LiveView;
  readonly history: PromptHistory | null;
  readonly text: Text;
  /** Made when all that it counts is there. */
  readonly metrics: () => Metrics;
  readonly events: ServeEvents;
  readonly timers: Timers;
}

/** Between two looks at the versions that engines report; fenced ones bring no events. */
const VERSION_LOOK_MS = 250;

/** The routes of all rows, as they are described before a server runs. */
export const FEATURE_ROUTES: readonly RouteInfo[] = [PAGE_ROUTE, ...LIVE_ROUTES, ...PLUGIN_ROUTES];

const FEATURES: readonly ((parts: FeatureParts) => Feature)[] = [
  ({ sidecar }) => ({
    kept: { groups: () => sidecar.kept, sessions: () => sidecar.sessionsKept },
  }),
  ({ history }) =>
    history === null
      ? {}
      : {
          observer: {
            finished: (request) => history.finished(request),
            advanced: () => history.advance(),
          },
          kept: { history: () => history.kept },
        },
  ({ learned, timers }) => ({ close: timers.repeatedly(() => learned.look(), VERSION_LOOK_MS) }),
  ({ stream }) => ({ drained: () => stream.end() }),
  ({ drafts }) => ({
    routes: bound(PLUGIN_ROUTES, drafts),
    observer: { advanced: (epoch) => drafts.server.advance(epoch) },
    drained: () => drafts.end(),
    close: () => drafts.end(),
  }),
  logged,
  iterations,
  ({ live, sidecar, text }) => ({
    routes: [PAGE_ROUTE, ...bound(LIVE_ROUTES, { live, sidecar, text })],
    kept: { completed: () => live.completed.kept },
    close: () => live.close(),
  }),
];

export function featuresOf(parts: FeatureParts): Feature[] {
  const features = FEATURES.map((feature) => feature(parts));
  for (const { observer } of features) if (observer !== undefined) parts.sidecar.observe(observer);
  return features;
}

/** Lines of the operator's log. */
function logged({ pool, weights, events }: FeatureParts): Feature {
  return {
    observer: {
      advanced: (epoch) => events.weightsChanged(epoch, weights.version(epoch)),
      quarantined: ({ response }) => events.quarantined(response.refusal?.message ?? ""),
      finished: (request) => {
        const { refusal } = request.response;
        if (refusal === null) return;
        const worker = pool.members.find(({ workerId }) => workerId === request.workerId);
        events.refused({
          request: request.spec.requestId,
          worker: worker?.source.name ?? null,
          status: refusal.status,
          reason: refusal.message,
        });
      },
      threw: events.failed,
      broken: (error) => events.broken(error),
    },
  };
}

/** Ends the last iteration before the view closes that keeps it. */
function iterations({ sidecar, live, metrics, events, timers }: FeatureParts): Feature {
  const all = new Iterations({
    sidecar,
    later: timers.afterwards,
    ended: (summary: IterationSummary) => {
      live.iterationEnded(summary);
      metrics().iterationEnded(summary);
      events.iterationEnded(summary);
    },
  });
  return { drained: () => all.end(), close: () => all.end() };
}
