// Connects the sidecar's parts to its metrics.

import { wallClock } from "../host/system.ts";
import { EngineTime } from "../observe/metrics/effective-time.ts";
import { Metrics } from "../observe/metrics/metrics.ts";
import type { EngineTelemetry } from "../server/drafts/engine-telemetry.ts";
import type { LiveView } from "../server/live/view.ts";
import { SERVING_STATES } from "../server/live/waiting.ts";
import { bound, type Row } from "../server/route.ts";
import type { StreamService } from "../server/stream/service.ts";
import type { Feature, Parts } from "./options.ts";

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

export function metered(
  { sidecar, pool, kv, options }: Parts,
  seen: {
    stream: StreamService;
    telemetry: EngineTelemetry;
    live: LiveView;
    kept: NonNullable<Feature["kept"]>;
  },
): Feature {
  const { stream, telemetry, live, kept } = seen;
  const { rollout } = sidecar;
  const engineTime = new EngineTime();
  let isBusy = false;
  const lookAtEngines = () => {
    isBusy = rollout.unfinished > 0;
    const members = pool.members.filter(({ state }) => state !== "leaving");
    const { length: serving } = members.filter(({ state }) => state === "ready");
    engineTime.at(wallClock.nowMs(), isBusy ? { serving, size: members.length } : null);
  };
  const metrics = new Metrics({
    modelName: options.model.names[0],
    meter: rollout.meter,
    drift: rollout.drift,
    unfinished: () => rollout.unfinished,
    epoch: () => rollout.epoch,
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
    paces: () => rollout.paces,
    servingState: () => live.state.state,
    servingStates: SERVING_STATES,
    staleWorkers: () => pool.members.filter(({ record }) => record.stale !== null).length,
    sessions: () => sidecar.sessions.figures,
    kvPool: () => kv.stats(),
    stream: () => stream.stats(),
    plugins: () => telemetry.figures(),
    kept: () => Object.entries(kept).map(([of, level]) => ({ of, ...level() })),
  });
  return {
    routes: bound(METRICS_ROUTES, metrics),
    observer: {
      joined: () => {
        if (!isBusy) lookAtEngines();
      },
      finished: (request) => {
        if (rollout.unfinished === 0) lookAtEngines();
        metrics.finished(request);
      },
      stats: (workerId, stats) => metrics.stats(workerId, stats),
    },
    log: {
      workerChanged: lookAtEngines,
      weightsHeld: (seconds) => metrics.weightsUpdated(seconds),
      chatRendered: (by, seconds) => metrics.chatRendered(by, seconds),
      iterationEnded: (summary) => metrics.iterationEnded(summary),
      answered: ({ status }) => metrics.answered(status),
    },
  };
}
