// What of the sidecar is in its metrics.

import { wallClock } from "./app.ts";
import type { EmbeddedKvPool } from "./core/kv/embedded-pool.ts";
import { EngineTime } from "./observe/metrics/effective-time.ts";
import { Metrics } from "./observe/metrics/metrics.ts";

import type { WorkerPool } from "./pool/pool.ts";

import type { LearnedEpochs } from "./server/control/learned-epochs.ts";
import type { EngineTelemetry } from "./server/drafts/engine-telemetry.ts";
import type { Kept } from "./server/kept.ts";
import { SERVING_STATES } from "./server/live/serving-state.ts";
import type { LiveView } from "./server/live/view.ts";
import type { Row } from "./server/route.ts";
import type { Sidecar } from "./server/sidecar.ts";
import type { StreamService } from "./server/stream/service.ts";

/** What is kept of work that is done, by kind; those who keep it may come later. */
export type KeptLevels = Record<string, () => Kept>;

export interface Metered {
  readonly metrics: Metrics;
  /** Call when a worker's state has changed. */
  workersChanged(): void;
}

export function meteredBy(
  sidecar: Sidecar,
  parts: {
    pool: WorkerPool;
    kv: EmbeddedKvPool;
    stream: StreamService;
    telemetry: EngineTelemetry;
    modelName: string;
    kept: KeptLevels;
    learned: LearnedEpochs;
    live: LiveView;
  },
): Metered {
  const { pool, kv, stream, telemetry, modelName, kept, learned, live } = parts;
  const engineTime = new EngineTime();
  let isBusy = false;
  const lookAtEngines = () => {
    isBusy = sidecar.rollout.unfinished > 0;
    const members = pool.members.filter(({ state }) => state !== "leaving");
    const { length: serving } = members.filter(({ state }) => state === "ready");
    engineTime.at(wallClock.nowMs(), isBusy ? { serving, size: members.length } : null);
  };
  const metrics = new Metrics({
    modelName,
    meter: sidecar.rollout.meter,
    unfinished: () => sidecar.rollout.unfinished,
    epoch: () => sidecar.rollout.epoch,
    engineTime: () => {
      lookAtEngines();
      return engineTime;
    },
    workerStates: () => {
      const counts: Record<string, number> = { ready: 0, reconnecting: 0, fenced: 0, down: 0 };
      for (const { state } of pool.members) counts[state] = (counts[state] ?? 0) + 1;
      return counts;
    },
    engineName: live.nameOf,
    paces: () => sidecar.rollout.paces,
    servingState: () => live.state.state,
    servingStates: SERVING_STATES,
    staleWorkers: () => learned.stale.size,
    sessions: () => sidecar.sessionFigures,
    kvPool: () => kv.stats(),
    stream: () => stream.stats(),
    plugins: () => telemetry.figures(),
    kept: () => Object.entries(kept).map(([of, level]) => ({ of, ...level() })),
  });
  sidecar.observe({
    joined: () => {
      if (!isBusy) lookAtEngines();
    },
    finished: (request) => {
      if (sidecar.rollout.unfinished === 0) lookAtEngines();
      metrics.finished(request);
    },
    stats: (workerId, stats) => metrics.stats(workerId, stats),
  });
  return { metrics, workersChanged: lookAtEngines };
}

export const METRICS_ROUTES: readonly Row<Metrics>[] = [
  {
    method: "GET",
    path: "/metrics",
    summary: "Prometheus metrics",
    answers: ["text/plain"],
    handle: async (metrics) =>
      new Response(await metrics.text(), { headers: { "content-type": metrics.contentType } }),
  },
];
