// The features of the server: one row each, in the order in which they observe and close. A row says which routes and
// sockets it has, which events it reads, what it keeps, and how it ends; sidecar.ts knows no more of it. To add one:
// docs/EXTENDING.md.

import { ADAPTER_CONTROL, ADAPTER_DATA, ADAPTER_SESSION_HEADERS } from "../adapters/list.ts";
import { errorText } from "../core/base/errors.ts";
import { weightEpoch } from "../core/base/ids.ts";
import { SAMPLES_MAX } from "../core/draft/service/limits.ts";
import { DraftServer } from "../core/draft/service/server.ts";
import type { Group } from "../core/request/buffer.ts";
import { SegmentedLog } from "../host/segmented-log.ts";
import { randomWord, wallClock } from "../host/system.ts";
import { CompletedGroups } from "../server/completed-groups.ts";
import { workersOf } from "../server/control/calls.ts";
import { CONTROL_ROUTES, controlRoutes } from "../server/control/routes.ts";
import { confined } from "../server/control/weights-roots.ts";
import { DraftSocketService } from "../server/drafts/draft-socket.ts";
import { EngineTelemetry, PLUGIN_ROUTES } from "../server/drafts/engine-telemetry.ts";
import { Iterations } from "../server/iterations.ts";
import { LIVE_ROUTES } from "../server/live/routes.ts";
import { LiveView } from "../server/live/view.ts";
import { DATA_ROUTES, DataPlane, dataRoutes } from "../server/openai/data-plane.ts";
import { RequestJournals } from "../server/openai/request-journals.ts";
import { OPENAPI_ROUTE } from "../server/openapi.ts";
import { PAGE_ROUTE } from "../server/page/html.ts";
import type { KnownRollouts } from "../server/rollouts/known.ts";
import { ROLLOUT_ROUTES, rolloutSide } from "../server/rollouts/routes.ts";
import { bound, type Route, type RouteInfo } from "../server/route.ts";
import { StreamService } from "../server/stream/service.ts";
import { encodeEvent, eventsIn } from "../server/trajectories/event-frame.ts";
import { SESSION_ROUTES } from "../server/trajectories/routes.ts";
import { Trajectories } from "../server/trajectories/trajectories.ts";
import { WORKER_ROUTES } from "../server/worker-registry.ts";
import { heldWeights } from "./kept-weights.ts";
import { METRICS_ROUTES, metered } from "./metrics.ts";
import type { Feature, Parts } from "./options.ts";

/** Every route of the server, as its row describes it. */
export function routeTable(): readonly RouteInfo[] {
  return [
    ...CONTROL_ROUTES,
    ...ADAPTER_CONTROL,
    ...WORKER_ROUTES,
    ...DATA_ROUTES,
    ...ADAPTER_DATA,
    ...ROLLOUT_ROUTES,
    ...SESSION_ROUTES,
    PAGE_ROUTE,
    ...LIVE_ROUTES,
    ...PLUGIN_ROUTES,
    ...METRICS_ROUTES,
    OPENAPI_ROUTE,
  ];
}

/** Interval between polls of the versions that engines report; fenced engines send no events. */
const VERSION_POLL_MS = 250;
/** Limit of the memory of complete groups' responses, kept for the page and for streams that resume. */
const COMPLETED_BYTES_MAX = 64 * 2 ** 20;
/** Limit of the trajectories of all sessions: 16,000 of 30 turns, with 250 new and 250 drawn tokens each, take 1.8 GB. */
const TRAJECTORY_BYTES_MAX = 2 * 2 ** 30;
const TRAJECTORY_LOG_BYTES_MAX = 2 ** 30;
/** Time after its last turn at which a session counts as ended: as long as a tool may take. */
const SESSION_MS_MAX = 600_000;
/** Interval of the sweep for unused draft groups. */
const DRAFT_SWEEP_MS = 1000;

export interface Features {
  readonly features: readonly Feature[];
  readonly rollouts: KnownRollouts;
}

export function featuresOf(parts: Parts): Features {
  const { sidecar, history, learned, timers, log, options } = parts;
  const { text } = options.model;
  const { repeatedly: every } = timers;
  const completed = new CompletedGroups(sidecar, COMPLETED_BYTES_MAX);
  const { failed } = log;
  const stream = new StreamService({ sidecar, completed, random: randomWord, every, failed });
  const drafts = draftService(parts);
  const live = liveView(parts, completed);
  const iterations = new Iterations({
    sidecar,
    later: timers.afterwards,
    ended: log.iterationEnded,
  });
  const served = requests(parts, () => drafts.telemetry.variesSeeds);
  const features: readonly Feature[] = [
    { kept: { groups: () => sidecar.kept } },
    history === null
      ? {}
      : {
          observer: {
            finished: (request) => history.finished(request),
            advanced: () => history.advance(),
          },
          kept: { history: () => history.kept },
        },
    { close: every(() => learned.poll(), VERSION_POLL_MS) },
    { sockets: { "/v1/stream": stream }, drained: () => stream.end() },
    drafts.feature,
    operatorsLog(parts),
    // Ends the last iteration before the view closes that keeps it.
    { drained: () => iterations.end(), close: () => iterations.end() },
    {
      routes: [PAGE_ROUTE, ...bound(LIVE_ROUTES, { live, completed, sidecar, text })],
      log: { iterationEnded: (summary) => live.iterationEnded(summary) },
      kept: { completed: () => completed.kept },
      close: () => live.close(),
    },
    ...served.features,
  ];
  const kept = Object.assign({}, ...features.map((feature) => feature.kept));
  const metrics = metered(parts, { stream, telemetry: drafts.telemetry, live, kept });
  return { features: [...features, metrics], rollouts: served.rollouts };
}

function liveView(parts: Parts, completed: CompletedGroups): LiveView {
  const { front, encoder, sidecar, pool, weights, timers, log } = parts;
  return new LiveView({
    sidecar,
    pool,
    weights,
    completed,
    clock: wallClock,
    every: timers.repeatedly,
    workers: () => workersOf({ sidecar, pool }),
    nowS: () => Date.now() / 1000,
    threadWaits: () => ["waits" in encoder ? encoder.waits : [], front?.bodyWait() ?? []].flat(),
    changed: log.stateChanged,
  });
}

/** The draft service behind /v1/draft: all groups of the sidecar, under its weight epochs, for engines with the plugin. */
function draftService({ options, sidecar, history, timers, log }: Parts) {
  const { rollout } = sidecar;
  const pastOf = (group: Group | null) => (group === null ? [] : (history?.past(group) ?? []));
  const telemetry = new EngineTelemetry({
    clock: wallClock,
    drafts: options.draft !== "off",
    notLossless: log.notLossless,
  });
  const server = new DraftServer({
    clock: wallClock,
    instanceId: randomWord(),
    // Responses to a prompt that comes again and again are all of one group.
    limits: { samplesMax: SAMPLES_MAX },
    leads: true,
    source: {
      responses: (groupId) => rollout.responses(groupId),
      ...(history && { past: (groupId) => pastOf(rollout.group(groupId)) }),
    },
    reports: telemetry,
    release: options.version,
  });
  const service = new DraftSocketService({ server, later: timers.afterwards });
  const stopSweeping = timers.repeatedly(() => server.sweep(), DRAFT_SWEEP_MS);
  const end = () => {
    stopSweeping();
    service.end();
  };
  const feature: Feature = {
    routes: bound(PLUGIN_ROUTES, { server, telemetry, service }),
    sockets: { "/v1/draft": service },
    observer: { advanced: (epoch) => server.advance(epoch) },
    drained: end,
    close: end,
  };
  return { feature, telemetry };
}

/** Reports some events of requests to the operator as well. */
function operatorsLog({ pool, weights, log }: Parts): Feature {
  return {
    observer: {
      advanced: (epoch) => log.weightsChanged(epoch, weights.version(epoch)),
      quarantined: ({ response }) => log.quarantined(response.refusal?.message ?? ""),
      draftsOff: (worker, reason) => log.notLossless(worker.name, reason),
      waitEnded: log.waitEnded,
      finished: (request) => {
        const { refusal } = request.response;
        if (refusal === null) return;
        const worker = pool.members.find(({ workerId }) => workerId === request.workerId);
        log.refused({
          request: request.spec.requestId,
          worker: worker?.source.name ?? null,
          status: refusal.status,
          reason: refusal.message,
        });
      },
      broken: (error) => log.broken(error),
    },
  };
}

/** Requests, rollouts and control calls of clients, with the parts of them that outlive the process. */
function requests(parts: Parts, variesSeeds: () => boolean): Features {
  const { options, front, log, sidecar, encoder, engines, chats, pool, weights, learned } = parts;
  const { journals, kept, saved, timers } = parts;
  const { text, names, eosTokenIds, openTextThread } = options.model;
  const { afterwards: later } = timers;
  const { retryGraceMs: graceMs } = options;
  const held = () => heldWeights({ sidecar, pool, weights });
  const versionOf = weights.version.bind(weights);
  const requestJournals =
    journals && new RequestJournals({ files: journals, sidecar, held, graceMs, later });
  const { trajectories, feature: recording } = recorded(parts);
  if (text.chatProblem) log.chatProblem(text.chatProblem);
  const shared = { sidecar, text, encoder, chats, eosTokenIds, later, variesSeeds };
  const plane = new DataPlane({
    ...shared,
    engines,
    trajectories,
    journals: requestJournals,
    modelNames: names,
    adapters: () => weights.adapters,
    hasText: openTextThread !== null,
    version: versionOf,
    expected: (hint) => learned.requested(hint),
    sessionHeaders: ADAPTER_SESSION_HEADERS,
    limits: { graceMs },
    failed: log.failed,
  });
  const { known: rollouts, routes } = rolloutSide({
    ...shared,
    clock: wallClock,
    files: journals,
    adapterOf: (model) => plane.model.adapterOf(model),
    versionOf,
    held: () => pool.held,
    ...(options.rolloutLimits && { limits: options.rolloutLimits }),
  });
  requestJournals?.takeOver(saved.requests);
  rollouts.takeOver(saved.rollouts);
  const keep = () => void kept.write({ sidecar, pool, weights });
  const feature: Feature = {
    routes: [
      ...controlOf(parts, plane),
      ...(front?.registry.routes() ?? []),
      ...dataRoutes(plane, ADAPTER_DATA),
      ...routes,
    ],
    kept: { requests: () => plane.jobs.kept, rollouts: () => rollouts.kept },
    observer: { advanced: keep },
    log: {
      workerChanged: () => {
        chats.forget();
        keep();
      },
    },
    // A client that is cut off later gives up nothing.
    stopped: async () => {
      await Promise.all([rollouts.close(), requestJournals?.close()]);
    },
  };
  return { features: [feature, recording, resuming(parts, rollouts)], rollouts };
}

function controlOf(parts: Parts, { jobs }: DataPlane): Route[] {
  const { sidecar, pool, weights, timers, options } = parts;
  const { model, version, weightsTimeoutMs: timeoutMs, weightsRoots = null } = options;
  const own = { sidecar, pool, weights, version, timeoutMs, later: timers.afterwards };
  const abortRequests = (ids: readonly string[] | null) => jobs.abort(ids);
  const calls = { ...own, modelName: model.names[0], abortRequests };
  return confined(controlRoutes(calls, ADAPTER_CONTROL), weightsRoots);
}

/** The trajectories of sessions, which outlive the process if there is a journal. */
function recorded(parts: Parts): { trajectories: Trajectories; feature: Feature } {
  const { sidecar, weights, timers, log, options } = parts;
  const { journal: folder = null } = options;
  const failed = (cause: unknown) => {
    const problem = `trajectories are kept in memory alone: ${errorText(cause)}`;
    log.failed(new Error(problem, { cause }));
  };
  const about = { name: "trajectories", bytesMax: TRAJECTORY_LOG_BYTES_MAX, failed };
  const kept = folder === null ? null : new SegmentedLog({ folder, ...about });
  const trajectories = new Trajectories({
    bytesMax: TRAJECTORY_BYTES_MAX,
    msMax: SESSION_MS_MAX,
    nowMs: () => Date.now(),
    iteration: () => sidecar.rollout.meter.iteration,
    version: (epoch) => weights.version(weightEpoch(epoch)),
    ...(kept && { keep: (event) => kept.append(encodeEvent(event)) }),
  });
  if (kept !== null) trajectories.restore(kept.read().flatMap(eventsIn));
  const feature: Feature = {
    routes: bound(SESSION_ROUTES, { sidecar, trajectories, later: timers.afterwards }),
    kept: { trajectories: () => trajectories.kept },
    stopped: async () => {
      kept?.append(encodeEvent({ kind: "stopped" }));
      await kept?.close();
    },
  };
  return { trajectories, feature };
}

/** Resumes rollouts of an earlier process as soon as engines serve, before clients can see that they do. */
function resuming({ pool, sidecar, log }: Parts, rollouts: KnownRollouts): Feature {
  let isOver = false;
  const workerChanged = () => {
    const { length: count } = rollouts.saved;
    if (isOver || count === 0) return;
    if (!pool.hasStarted || sidecar.rollout.workers.length === 0) return;
    isOver = true;
    const weights = sidecar.rollout.workers.flatMap((worker) => worker.weights ?? []);
    rollouts.resume(weights, log.failed);
    log.resumed(count);
  };
  const close = () => {
    isOver = true;
  };
  return { log: { workerChanged }, close };
}
